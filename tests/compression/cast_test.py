"""Narrower types against NumPy's rounding, bit by bit."""

import numpy as np
import pytest
import tensorflow as tf

from tests.compression import runs
from tfdist.compression import Cast

SIZE = 64


def to_bfloat16(vector):
    """The nearest bfloat16, ties to even, as float32: by its bits."""
    bits = vector.view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


@pytest.mark.parametrize(
    ("dtype", "oracle"),
    [
        ("bfloat16", to_bfloat16),
        ("float16", lambda v: v.astype(np.float16).astype(np.float32)),
    ],
)
def test_elements_are_rounded_to_the_nearest(dtype, oracle):
    run = runs.Run(Cast(dtype), SIZE)
    (vector,) = runs.vectors(SIZE, 1)
    # Ties, in both types.
    vector[:4] = 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, -1 - 3 * 2.0**-11
    # Below the least normal number of float16, and below all of them.
    vector[4:8] = 3e-5, -1e-6, 4e-8, 1e-9
    message = run.encode(vector)
    runs.same(run.decode(message), oracle(vector))
    assert int(run.codec.bytes(message)) == 4 + 2 * SIZE


def test_the_widest_is_the_uncompressed_method():
    run = runs.Run(Cast("float32"), SIZE)
    (vector,) = runs.vectors(SIZE, 1)
    message = run.encode(vector)
    runs.same(run.decode(message), vector)
    assert int(run.codec.bytes(message)) == 4 + 4 * SIZE


def test_float64_is_cast_too():
    run = runs.Run(Cast("float32"), SIZE, tf.float64)
    (vector,) = runs.vectors(SIZE, 1, dtype=np.float64)
    runs.same(run.send(vector), vector.astype(np.float32).astype(np.float64))


def test_what_is_too_large_becomes_the_largest_value():
    run = runs.Run(Cast("float16"), 2)
    runs.same(run.send([1e6, -1e6]), np.array([65504, -65504], np.float32))


def test_other_types_are_refused():
    with pytest.raises(ValueError, match="`dtype` of Cast must be one of"):
        Cast("int8")
