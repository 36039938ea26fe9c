"""Eight bits against NumPy, bit by bit; stochastic rounding on average."""

import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.compression import runs
from tfdist.compression import Int8

# Two blocks and a part of one.
SIZE = 600


def oracle(vector, noise=None):
    """What is decoded, and the scales."""
    dtype = vector.dtype.type
    decoded, scales = np.zeros_like(vector), []
    for begin in range(0, vector.size, 256):
        x = vector[begin : begin + 256]
        largest = np.abs(x).max()
        scaled = x * (dtype(127) / largest) if largest else x
        if noise is None:
            q = np.rint(scaled)
        else:
            q = np.floor(scaled + noise[begin : begin + 256])
        scales.append(largest * dtype(1 / 127))
        decoded[begin : begin + 256] = np.clip(q, -127, 127) * scales[-1]
    return decoded, np.array(scales)


@pytest.mark.parametrize("dtype", nightly.also(["float64"], ["float32"]))
def test_nearest(dtype):
    run = runs.Run(Int8(dense_below=0), SIZE, tf.as_dtype(dtype))
    for vector in runs.vectors(SIZE, 3, dtype=dtype):
        vector[256:512] *= 0 if vector[0] < 0 else 1
        message = run.encode(vector)
        decoded, scales = oracle(vector)
        runs.same(run.decode(message), decoded)
        runs.same(message.values, scales)
        # A byte each, scales, and the kind.
        expected = SIZE + 3 * np.dtype(dtype).itemsize + 4
        assert int(run.codec.bytes(message)) == expected


def test_stochastic():
    run = runs.Run(Int8("stochastic", seed=5, dense_below=0), SIZE)
    for number, vector in enumerate(runs.vectors(SIZE, 3)):
        noise = tf.random.stateless_uniform([SIZE], [5, number]).numpy()
        runs.same(run.send(vector), oracle(vector, noise)[0])


@pytest.mark.nightly
def test_stochastic_rounding_is_right_on_average():
    run = runs.Run(Int8("stochastic", dense_below=0), 256)
    vector = np.linspace(-1, 1, 256, dtype=np.float32)
    mean = np.mean([run.send(vector) for _ in range(400)], 0)
    # A multiple is 1/127; the mean of 400 is off by 1/20 of half of one.
    assert np.abs(mean - vector).max() < 5 * 0.5 / 127 / 20


def test_the_smallest_numbers_are_zero():
    run = runs.Run(Int8(dense_below=0), 256)
    runs.same(run.send([1e-37] * 256), np.zeros(256, np.float32))


def test_other_roundings_are_refused():
    with pytest.raises(ValueError, match="`rounding` of Int8 must be one of"):
        Int8("up")


def test_rounding_of_many_workers_does_not_add_up():
    """Each has noise of its own, also where all send nearly the same."""
    codec, size, workers = Int8("stochastic"), 4096, 16
    (vector,) = runs.vectors(size, 1)
    errors = []
    for worker in range(workers):
        message, _ = codec.encode(vector, codec.state(size, worker=worker))
        errors.append(codec.decode(message, size) - vector)
    one = np.std(errors[0])
    # That of the mean of 16 independent errors is a fourth.
    assert np.std(np.mean(errors, 0)) == pytest.approx(one / 4, rel=0.1)
