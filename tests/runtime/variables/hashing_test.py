"""Hashes of ids against splitmix64 in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.runtime.variables import hashing

IDS = np.array([0, 1, -1, 2**62, -(2**62), 12345], np.int64)


def splitmix(ids, salt=0):
    """The `salt`-th number after each id of splitmix64's stream, uint64."""
    with np.errstate(over="ignore"):
        z = np.asarray(ids, np.int64).view(np.uint64).copy()
        z += np.uint64(((salt + 1) * 0x9E3779B97F4A7C15) % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def test_stream_of_zero_is_the_published_one():
    zero = tf.constant([0], tf.int64)
    assert hashing.mix(zero).numpy()[0] == 0xE220A8397B1DCDAF
    assert hashing.mix(zero, 1).numpy()[0] == 0x6E789E6AA1B965F4


@pytest.mark.parametrize("salt", [0, 1, 7])
def test_hashes_are_those_of_numpy(salt):
    found = hashing.mix(tf.constant(IDS), salt).numpy()
    np.testing.assert_array_equal(found, splitmix(IDS, salt))


@pytest.mark.parametrize("bound", [1, 1024, 3 * 2**40])
def test_remainders_are_those_of_the_hash(bound):
    bits = splitmix(IDS)
    found = hashing.below(tf.constant(bits), bound).numpy()
    expected = [int(b >> np.uint64(1)) % bound for b in bits]
    np.testing.assert_array_equal(found, expected)


def test_numbers_are_uniform_and_depend_on_id_column_and_seed():
    ids = tf.range(4000, dtype=tf.int64)
    found = hashing.uniform(ids, 5, 3, tf.float64).numpy()
    assert found.shape == (4000, 5) and len(np.unique(found)) == 20000
    assert found.min() >= 0 and found.max() < 1
    # Of the mean of 20,000: five standard errors.
    assert abs(found.mean() - 0.5) < 5 / np.sqrt(12 * 20000)
    assert abs(np.mean(found**2) - 1 / 3) < 0.02
    some = hashing.uniform(ids[7:9], 5, 3, tf.float64).numpy()
    np.testing.assert_array_equal(some, found[7:9])
    other = hashing.uniform(ids, 5, 4, tf.float64).numpy()
    assert not np.any(other == found)
    assert hashing.uniform(ids, 5, 3, tf.float32).dtype == tf.float32
