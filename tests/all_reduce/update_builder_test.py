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


def weights_after(strategy, steps=3):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input([2]), *[keras.layers.Dense(2) for _ in range(2)]]
        )
        model.compile(Counting(), "mse")
    x = np.ones([2 * steps, 2], "float32")
    model.fit(x, x, batch_size=2, shuffle=False, verbose=0)
    return model.get_weights()


def test_it_is_kerass_own():
    plain = weights_after(tf.distribute.get_strategy())
    found = weights_after(tfdist.AllReduceStrategy(seed=0))
    for ours, kerass in zip(found, plain, strict=True):
        np.testing.assert_allclose(ours, kerass, rtol=2e-6, atol=1e-7)


@pytest.mark.nightly
def test_rows_of_an_embedding_have_the_rule_of_a_dense_gradient():
    words = np.array([[1, 1], [2, 1], [4, 4], [1, 2]])
    begin = np.linspace(-1.0, 1.0, 15).reshape([5, 3])
    found = {}
    for strategy in (tf.distribute.get_strategy(), tfdist.AllReduceStrategy()):
        is_plain = not found
        with strategy.scope():
            ids = keras.Input([2], dtype="int32")
            # The same word twice in a batch: Keras would square both rows.
            if is_plain:
                layer = keras.layers.Dense(3, use_bias=False)
                outputs = layer(keras.ops.one_hot(ids, 5))
            else:
                layer = keras.layers.Embedding(5, 3)
                outputs = layer(ids)
            model = keras.Model(ids, keras.ops.sum(outputs, [1, 2]))
            model.compile(keras.optimizers.Adam(0.1), "mse")
        layer.set_weights([begin])
        model.fit(words, np.ones(4), 2, epochs=3, shuffle=False, verbose=0)
        found[is_plain] = layer.get_weights()[0]
    np.testing.assert_allclose(found[False], found[True], rtol=1e-5)
