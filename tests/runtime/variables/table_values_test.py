"""First values of tables are those of the initializer, piece by piece."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.runtime.variables import table_values

SHAPE = (64_000, 16)
ROWS = 63


def values(initializer, partition, shape=SHAPE):
    """The values of one partition, a NumPy array."""
    build = table_values.by_partition(initializer, shape)
    part = build(tf.constant(partition, tf.int64), (ROWS, SHAPE[1]), "float32")
    return part.numpy()


RANDOM = {
    "uniform": (keras.initializers.RandomUniform(-0.3, 0.3), 0.3 / 3**0.5),
    "normal": (keras.initializers.RandomNormal(stddev=0.2), 0.2),
    # Glorot and Bengio 2010, equation 16: a variance of 2 / (rows + columns).
    "glorot": (
        keras.initializers.GlorotNormal(seed=3),
        (2 / sum(SHAPE)) ** 0.5,
    ),
    "scaled": (
        keras.initializers.VarianceScaling(2.0, "fan_out", "uniform"),
        (2 / SHAPE[1]) ** 0.5,
    ),
}
if hasattr(keras.initializers.VarianceScaling(), "input_axes"):  # Keras 3.15.
    RANDOM["scaled by columns"] = (
        keras.initializers.HeNormal(input_axes=[1], output_axes=[0]),
        (2 / SHAPE[1]) ** 0.5,
    )


@pytest.mark.parametrize("name", RANDOM)
def test_random_values_have_the_spread_of_the_whole_table(name):
    initializer, deviation = RANDOM[name]
    found = np.concatenate([values(initializer, k) for k in range(30)])
    # 30,240 values: their deviation has an error of 0.4 %.
    np.testing.assert_allclose(found.std(), deviation, rtol=0.03)
    np.testing.assert_allclose(found.mean(), 0, atol=0.03 * deviation)


def test_partitions_differ_and_come_again():
    initializer = keras.initializers.RandomUniform(seed=5)
    first, second = values(initializer, 0), values(initializer, 1)
    assert not np.any(first == second)
    np.testing.assert_array_equal(values(initializer, 1), second)
    other = keras.initializers.RandomUniform(seed=6)
    assert not np.any(values(other, 1) == second)


def test_stream_of_seeds_is_drawn_from():
    stream = keras.random.SeedGenerator(4)
    initializer = keras.initializers.RandomNormal(seed=stream)
    assert np.all(values(initializer, 2) != values(initializer, 3))


def test_constants_are_constant():
    assert np.all(values(keras.initializers.Ones(), 3) == 1)
    assert np.all(values(keras.initializers.Constant(0.25), 3) == 0.25)


@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.Orthogonal(),
        keras.initializers.Constant(np.ones(SHAPE)),
        lambda shape, dtype: keras.ops.ones(shape, dtype),
    ],
)
def test_values_that_are_made_as_a_whole_are_not_made_in_parts(initializer):
    assert table_values.by_partition(initializer, SHAPE) is None
