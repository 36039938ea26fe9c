"""The updates of one stage's weights."""

import keras
from keras import layers
import numpy as np

from tfdist.pipeline import pipelined


class Averaging(keras.optimizers.Optimizer):
    """Steps by an average of gradients, which it assigns as Keras does."""

    def build(self, variables):
        """Makes the averages."""
        if not self.built:
            super().build(variables)
            self.means = self.add_optimizer_variables(variables, "mean")

    def update_step(self, gradient, variable, learning_rate):
        """Updates the average, and steps by it."""
        mean = self.means[self._get_variable_index(variable)]
        mean.assign(0.75 * mean + gradient)
        variable.assign_sub(learning_rate * mean)


def test_slots_that_an_own_optimizer_assigns_as_keras_variables_are_kept():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 3)), rng.normal(size=(4, 2))
    trained = []
    for schedule in (None, "pipedream"):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((3,)),
                layers.Dense(3, "tanh", name="a"),
                layers.Dense(2, name="b"),
            ]
        )
        if schedule:
            pipelined.pipeline(model, ["b"], micro_batches=1, schedule=schedule)
        model.compile(Averaging(0.125), "mse")
        # One batch at a time in the pipeline: no weights are late.
        for _ in range(2):
            model.fit(x, y, batch_size=4, verbose=0)
        trained.append([*model.get_weights(), *model.optimizer.variables])
    assert int(model.optimizer.iterations) == 2
    for one, two in zip(*trained, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
