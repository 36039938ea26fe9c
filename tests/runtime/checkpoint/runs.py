"""Runs of small models that take turns, each with an optimizer of its own."""

import keras
import numpy as np

random = np.random.default_rng(0)
_X = random.normal(size=(8, 4, 3)).astype("float32")
_Y = _X @ np.array([[1.0], [2.0], [3.0]], "float32")


class Run:
    """Models of one strategy, which may go on where another run was."""

    def __init__(self, strategy, optimizer, number, saved=None, **arguments):
        """Makes the models.

        Args:
            strategy: theirs.
            optimizer: callable that makes one.
            number: how many models.
            saved: what `state.read` gave; `None` to begin.
            **arguments: of `compile`.
        """
        self.strategy = strategy
        self.state = strategy.state
        keras.utils.set_random_seed(1)
        with strategy.scope():
            self.models = [
                self._model(optimizer(), **arguments) for _ in range(number)
            ]
        if saved is not None:
            self.state.restore(saved)

    def _model(self, optimizer, **arguments):
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(1, use_bias=False)]
        )
        model.compile(optimizer, "mse", **arguments)
        optimizer.build(model.trainable_variables)
        return model

    def step(self, number, model):
        """A model, by its number, takes a step with a batch."""
        self.models[model].train_on_batch(_X[number], _Y[number])

    def steps(self, *numbers):
        """The models take turns with the batches of these numbers."""
        for number in numbers:
            for model in range(len(self.models)):
                self.step(number, model)

    def weights(self):
        """All of the models, in order."""
        return [model.get_weights()[0].ravel() for model in self.models]
