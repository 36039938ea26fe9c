"""Local steps that were saved are taken up by the optimizer that took them."""

import keras
import numpy as np
import pytest

import tfdist

PERIOD = 4
STRATEGIES = {
    "Downpour": lambda: tfdist.DownpourStrategy(
        PERIOD, PERIOD, outer_optimizer=keras.optimizers.SGD(0.01)
    ),
    "averaging": lambda: tfdist.ParameterAveragingStrategy(PERIOD),
    "elastic averaging": lambda: tfdist.ElasticAveragingStrategy(PERIOD),
}
random = np.random.default_rng(0)
X = random.normal(size=(8, 4, 3)).astype("float32")
Y = X @ np.array([[1.0], [2.0], [3.0]], "float32")


class Run:
    """Models of one strategy, each with an optimizer of its own."""

    def __init__(self, name, number, saved=None, **arguments):
        self.strategy = STRATEGIES[name]()
        self.state = self.strategy._runtime.state
        keras.utils.set_random_seed(1)
        with self.strategy.scope():
            self.models = [self._model(**arguments) for _ in range(number)]
        if saved is not None:
            self.state.restore(saved)

    def _model(self, **arguments):
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(1, use_bias=False)]
        )
        optimizer = keras.optimizers.SGD(0.02, momentum=0.5)
        model.compile(optimizer, "mse", **arguments)
        optimizer.build(model.trainable_variables)
        return model

    def steps(self, *numbers):
        """The models take turns with the batches of these numbers."""
        for k in numbers:
            for model in self.models:
                model.train_on_batch(X[k], Y[k])

    def end(self):
        """What it has come to in the end: weights, and updates."""
        self.strategy.barrier()
        weights = [model.get_weights()[0].ravel() for model in self.models]
        return weights, self.strategy.updates_applied()


def check(run, other):
    weights, updates = run.end()
    expected, number = other.end()
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    assert updates == number


@pytest.mark.parametrize("name", ["Downpour", "averaging"])
def test_each_of_two_optimizers_takes_up_its_steps(name):
    whole = Run(name, 2)
    whole.steps(0, 1, 2)
    resumed = Run(name, 2, whole.state.read())
    whole.steps(3)
    resumed.steps(3)
    check(resumed, whole)


def test_what_is_not_taken_up_yet_is_saved_again():
    whole = Run("averaging", 2)
    whole.steps(0, 1, 2)
    between = Run("averaging", 2, whole.state.read())
    between.models[0].train_on_batch(X[3], Y[3])
    resumed = Run("averaging", 2, between.state.read())
    resumed.models[1].train_on_batch(X[3], Y[3])
    whole.steps(3)
    check(resumed, whole)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_first_step_that_runs_eagerly_goes_on_from_own_weights(name):
    whole = Run(name, 1, run_eagerly=True)
    whole.steps(0, 1)
    resumed = Run(name, 1, whole.state.read(), run_eagerly=True)
    whole.steps(2, 3, 4)
    resumed.steps(2, 3, 4)
    check(resumed, whole)
