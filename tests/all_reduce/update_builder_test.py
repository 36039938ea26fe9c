"""An optimizer's step that reads and assigns scalars of its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist


class Counting(keras.optimizers.SGD):
    """Its rate falls with each variable that it updates."""

    def build(self, variables):
        """Adds the number of updates of single variables."""
        super().build(variables)
        self.updates = self.add_variable((), "zeros", name="updates")

    def update_step(self, gradient, variable, learning_rate):
        """Reads the number, assigns it, and reads it again."""
        before = keras.ops.convert_to_tensor(self.updates)
        self.updates.assign_add(1.0)
        after = keras.ops.convert_to_tensor(self.updates)
        factor = learning_rate / (before + after)
        self.assign_sub(variable, factor * gradient)


def weights_after(strategy, optimizer, steps=3):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input([2]), *[keras.layers.Dense(2) for _ in range(4)]]
        )
        model.compile(optimizer(), "mse")
    x = np.ones([2 * steps, 2], "float32")
    model.fit(x, x, batch_size=2, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize(
    "optimizer",
    [
        Counting,
        keras.optimizers.Adam,
        lambda: keras.optimizers.Nadam(gradient_accumulation_steps=2),
    ],
)
def test_it_is_kerass_own(optimizer):
    plain = weights_after(tf.distribute.get_strategy(), optimizer)
    found = weights_after(tfdist.AllReduceStrategy(seed=0), optimizer)
    for ours, kerass in zip(found, plain, strict=True):
        np.testing.assert_allclose(ours, kerass, rtol=2e-6, atol=1e-7)
