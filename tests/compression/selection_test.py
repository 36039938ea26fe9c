"""Passes over vectors."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.compression import selection


@pytest.mark.parametrize("small", [0, 2**16], ids=["compiled", "looked up"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_two_bits_stand_for_signs_however_they_are_decoded(
    monkeypatch, small, dtype
):
    monkeypatch.setattr(selection, "_SMALL", small)
    signs = np.random.default_rng(0).integers(-1, 2, 1001).astype(np.int8)
    padded = tf.constant(np.pad(signs, [0, -len(signs) % 8]))
    found = selection.from_two_bits(
        selection.two_bits(padded), tf.constant(0.3, dtype), len(signs)
    )
    np.testing.assert_array_equal(found, dtype(0.3) * signs.astype(dtype))


@pytest.mark.parametrize("size", [100, 8192, 20_000, 40_000, 100_001])
def test_a_sample_has_8192_elements_unless_there_are_fewer(size):
    """Also where the stride would be an even number."""
    vector = tf.ones([size])
    for message in range(3):
        found = selection.sample([vector], 0.01, tf.constant(message, tf.int64))
        assert tf.size(found) >= min(size, 8192)
