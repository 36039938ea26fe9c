"""A first step after resuming computes gradients where DANA looks ahead."""

import keras
import numpy as np
import pytest

import tfdist

random = np.random.default_rng(0)
X = random.normal(size=(6, 4, 3)).astype("float32")
Y = X @ np.array([[1.0], [2.0], [3.0]], "float32")


class Run:
    """Two models of one strategy, each with an optimizer of its own."""

    def __init__(self, eagerly, saved=None):
        self.strategy = tfdist.DANAStrategy(variant="zero")
        self.state = self.strategy._runtime.state
        keras.utils.set_random_seed(1)
        with self.strategy.scope():
            self.models = [self._model(eagerly) for _ in range(2)]
        if saved is not None:
            self.state.restore(saved)

    def _model(self, eagerly):
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(1, use_bias=False)]
        )
        optimizer = keras.optimizers.SGD(0.02)
        model.compile(optimizer, "mse", run_eagerly=eagerly)
        optimizer.build(model.trainable_variables)
        return model

    def steps(self, *numbers):
        """The models take turns with the batches of these numbers."""
        for k in numbers:
            for model in self.models:
                model.train_on_batch(X[k], Y[k])

    def weights(self):
        """Those on the servers."""
        self.strategy.pull()
        return [model.get_weights()[0].ravel() for model in self.models]


@pytest.mark.parametrize("eagerly", [True, False], ids=["eagerly", "traced"])
def test_a_first_step_looks_ahead(eagerly):
    whole = Run(eagerly)
    whole.steps(0, 1, 2)
    resumed = Run(eagerly, whole.state.read())
    whole.steps(3, 4)
    resumed.steps(3, 4)
    np.testing.assert_allclose(resumed.weights(), whole.weights(), rtol=1e-6)
