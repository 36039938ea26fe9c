"""Which vectors are finite."""

import pytest
import tensorflow as tf

from tfdist.all_reduce import nonfinite


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
