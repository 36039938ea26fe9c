"""Which vectors are finite, and that a loss scale sees those that are not."""

import keras
import pytest
import tensorflow as tf

import tfdist
from tfdist.all_reduce import collectives
from tfdist.all_reduce import nonfinite


class RowsOfNobodyElse(collectives.NoCollectives):
    """Collectives of one worker, whose rows are all that there are."""

    device = "/device:CPU:0"

    def gather_rows(self, rows, power, name, piece):
        """Returns `rows`."""
        del power, name, piece
        return rows


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_numbers_with_a_large_sum_are_finite(dtype):
    device = tf.config.list_logical_devices("CPU")[0].name
    check = nonfinite.FiniteCheck("drop", "/job:worker/task:0", device)

    @tf.function
    def checked(vector):
        return check.checked(
            [vector], list, ["x"], lambda vectors: [0.0 * vectors[0]]
        )

    large = tf.fill([1024], tf.cast(256.0, dtype))
    (kept,), finite = checked(large)
    assert finite
    assert kept.numpy().tolist() == large.numpy().tolist()
    _, finite = checked(tf.concat([large, [float("inf")]], 0))
    assert not finite


def test_a_loss_scale_sees_an_overflow_where_all_travels_as_rows(monkeypatch):
    """Of a model that has nothing but large tables."""
    strategy = tfdist.AllReduceStrategy()
    engine = strategy._engine
    # Rows travel where there are other workers.
    monkeypatch.setattr(engine, "num_workers", 2)
    monkeypatch.setattr(engine, "collectives", RowsOfNobodyElse())
    with strategy.scope():
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), initial_scale=8.0
        )
        table = keras.Variable(tf.zeros([70_000, 4]))

    @tf.function
    def step(values):
        rows = tf.IndexedSlices(values, tf.constant([3]), [70_000, 4])
        strategy.run(lambda: optimizer.apply([rows], [table]))

    # The scale is 8; then, after the overflow, 4.
    for gradient in (8.0, float("inf"), 8.0):
        step(tf.fill([1, 4], gradient))
    assert float(optimizer.dynamic_scale) == 4.0
    assert int(optimizer.iterations) == 2
    assert table[3].numpy().tolist() == [-1.0 - 2.0] * 4
