"""Signs against NumPy; error feedback."""

import numpy as np

from tests.compression import runs
from tfdist.compression import Sign

SIZE = 1024 + 512


def dyadic(count):
    rng = np.random.default_rng(3)
    return rng.integers(-64, 64, (count, SIZE)).astype(np.float32) / 16


def scales_of(vector):
    """Means of whole blocks: exact for dyadic vectors of few bits."""
    blocks = np.split(np.abs(vector), [1024])
    return np.array([block.sum() / block.size for block in blocks], np.float32)


def decoded(positive, scales):
    scales = np.repeat(scales, [1024, 512])
    return np.where(positive, scales, -scales)


def test_error_feedback_to_the_bit():
    run = runs.Run(Sign(), SIZE)
    (vector,) = dyadic(1)
    message = run.encode(vector)
    expected = decoded(vector >= 0, scales_of(vector))
    runs.same(run.decode(message), expected)
    runs.same(run.state_of("residual"), vector - expected)
    assert int(run.codec.bytes(message)) == 4 + 2 * 128 + 2 * 4
    for vector in dyadic(3):
        before = run.state_of("residual")
        sent = run.send(vector)
        runs.same(run.state_of("residual"), before + vector - sent)
        runs.same(sent >= 0, before + vector >= 0)


def test_without_error_feedback_each_message_stands_for_itself():
    codec = Sign(error_feedback=False)
    assert codec.state(SIZE) == {}
    (vector,) = dyadic(1)
    run = runs.Run(codec, SIZE)
    first = run.encode(vector)
    runs.same(run.encode(vector).data, first.data)
    runs.same(run.decode(first), decoded(vector >= 0, scales_of(vector)))
