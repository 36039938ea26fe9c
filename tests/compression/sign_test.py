"""Signs against NumPy; error feedback; the vote of several."""

import numpy as np
import tensorflow as tf

from tests.compression import runs
from tfdist.compression import Sign
from tfdist.compression import base

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


def test_the_vote_is_that_of_most_and_of_the_first_where_there_is_a_tie():
    codec = Sign(error_feedback=False)
    for count in (1, 3, 4):
        vectors = dyadic(count)
        messages = [codec.encode(tf.constant(v), {})[0] for v in vectors]
        votes = np.where(vectors >= 0, 1, -1).sum(0)
        positive = np.where(votes == 0, vectors[0] >= 0, votes > 0)
        scales = sum(map(scales_of, vectors)) / np.float32(count)
        message = codec.vote(messages)
        assert runs.kind_of(message) == base.OWN
        runs.same(codec.decode(message, SIZE), decoded(positive, scales))
