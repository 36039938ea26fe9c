"""A look-up has the rows that updates before it in a step have left."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist


class TwiceInAStep(keras.Model):
    """Makes two updates, from the rows that are there for each."""

    def __init__(self):
        super().__init__()
        # More rows than a short id can name.
        self.table = keras.layers.Embedding(
            40_000, 1, embeddings_initializer="zeros"
        )

    def call(self, ids):
        return self.table(ids)[:, 0]

    def train_step(self, data):
        ids, y = data
        losses = []
        for _ in range(2):
            with tf.GradientTape() as tape:
                losses.append(tf.reduce_mean((y - self(ids)) ** 2))
                scaled = self.optimizer.scale_loss(losses[-1])
            variables = self.trainable_variables
            gradients = tape.gradient(scaled, variables)
            self.optimizer.apply(gradients, variables)
        return {"first": losses[0], "second": losses[1]}


@pytest.mark.nightly
def test_a_look_up_after_an_update_in_a_branch_has_its_rows():
    """A loss scale makes updates in one."""
    with tfdist.AsyncStrategy(table_bytes=1).scope():
        model = TwiceInAStep()
        sgd = keras.optimizers.SGD(0.1)
        model.compile(keras.optimizers.LossScaleOptimizer(sgd))
    ids, y = np.zeros([4, 1], "int32"), np.ones([4, 1], "float32")
    (losses,) = zip(*model.fit(ids, y, verbose=0).history.values(), strict=True)
    np.testing.assert_allclose(losses, [1.0, 0.64], rtol=1e-6)
    row = keras.ops.take(model.table.embeddings, np.int16([0]), axis=0)
    np.testing.assert_allclose(row, [[0.36]], rtol=1e-6)
