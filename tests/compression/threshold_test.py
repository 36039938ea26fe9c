"""Strom's rule against NumPy; entries, entropy coding, map; adapted tau."""

import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.compression import runs
from tfdist.compression import Threshold
from tfdist.compression import base

# No multiple of 8.
SIZE = 203


def oracle(vectors, tau, clip=None):
    """Yields (indices that are sent, what is sent, residual)."""
    dtype = vectors.dtype.type
    tau = dtype(tau)
    residual = np.zeros(vectors.shape[1], dtype)
    for vector in vectors:
        total = residual + vector
        indices = np.flatnonzero(np.abs(total) > tau)
        sent = np.zeros_like(total)
        sent[indices] = np.where(total[indices] < 0, -tau, tau)
        residual = total - sent
        if clip is not None:
            residual = np.clip(residual, -dtype(clip) * tau, dtype(clip) * tau)
        yield indices, sent, residual


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({}, "float32"),
        ({"entropy": False}, "float64"),
        ({"clip": 1.5}, "float32"),
    ],
)
def test_it_is_strom_s_rule_to_the_bit(settings, dtype):
    run = runs.Run(
        Threshold(3.0, dense_below=0, **settings), SIZE, tf.as_dtype(dtype)
    )
    vectors = runs.vectors(SIZE, 6, dtype=dtype)
    vectors *= np.array([[0.2], [0.2], [0.1], [5], [0.1], [0.1]], dtype)
    kinds = set()
    expected = oracle(vectors, 3.0, settings.get("clip"))
    for vector, (indices, sent, residual) in zip(
        vectors, expected, strict=True
    ):
        message = run.encode(vector)
        kinds.add(runs.kind_of(message))
        runs.same(run.decode(message), sent)
        runs.same(run.state_of("residual"), residual)
        runs.same(message.values, np.array([3.0], dtype))
        if runs.kind_of(message) == base.OWN:
            own = indices.astype(np.int32)
            own[sent[indices] < 0] |= np.int32(-(2**31))
            runs.same(message.data.numpy().view(np.int32), own)
    # Few, and more than a sixteenth.
    entries = base.OWN + ("entropy" not in settings)
    assert kinds == {entries, base.OWN + 2}


def test_a_message_has_the_bytes_that_are_said():
    codec = Threshold(3.0, entropy=False, dense_below=0)
    run = runs.Run(codec, SIZE)
    quiet, loud = np.zeros(SIZE), np.full(SIZE, 4.0)
    quiet[:7] = 4.0
    # Kind and tau, 4 bytes each; 7 entries, or two bits for each of 208.
    assert int(codec.bytes(run.encode(quiet))) == 8 + 7 * 4
    assert int(codec.bytes(run.encode(loud))) == 8 + 208 // 4


def test_entropy_coding_takes_four_bits_above_the_logarithm_at_most():
    size, count = 4096, 16
    run = runs.Run(Threshold(1.0, dense_below=0), size)
    vector = np.zeros(size)
    vector[:: size // count] = 2.0
    message = run.encode(vector)
    bits = count * (np.log2(size / count) + 4)
    # Number of entries, and what fills up the last words.
    assert 8 * message.data.shape[0] <= bits + 32 + 32 + 64


def test_without_a_threshold_it_is_the_uncompressed_method():
    codec = Threshold(0.0)
    (vector,) = runs.vectors(2000, 1)
    state = codec.state(2000)
    message, after = codec.encode(tf.constant(vector), state)
    runs.same(codec.decode(message, 2000), vector)
    assert state == after == {}


@pytest.mark.parametrize("wrong_by", nightly.also([10.0], [0.1]))
def test_tau_reaches_its_target(wrong_by):
    """Within 200 messages, of a start that is wrong by ten times."""
    size, density = 20_000, 1 / 100
    vectors = runs.vectors(size, 20)
    right = np.quantile(np.abs(vectors), 1 - density)
    codec = Threshold(right * wrong_by, density=density)
    run = runs.Run(codec, size)
    rng = np.random.default_rng(1)
    shares = []
    for number in range(200):
        vector = vectors[number % 20] * rng.choice([-1, 1], size)
        message = run.encode(vector)
        if number >= 150:
            shares.append(np.count_nonzero(run.decode(message)) / size)
    assert density * 0.8 < np.mean(shares) < density * 1.25


def test_tau_starts_from_a_quantile_of_the_first_vector():
    size = 5000
    run = runs.Run(Threshold(density=1 / 50), size)
    (vector,) = runs.vectors(size, 1)
    sent = np.count_nonzero(run.send(vector))
    # All of 5,000 are the sample; that bound itself does not pass it.
    assert sent == size // 50 - 1
    assert run.state_of("tau") == np.sort(np.abs(vector))[-size // 50]


def test_a_vector_with_fewer_elements_than_the_target_still_moves():
    """A quantile of 0 is no threshold."""
    size = 2000
    run = runs.Run(Threshold(density=1 / 50), size)
    vector = np.zeros(size, np.float32)
    runs.same(run.send(vector), vector)
    vector[:4] = 1.0
    total = sum(run.send(vector) for _ in range(10))
    assert np.all(total[:4] >= 8.0)
    assert np.all(total[4:] == 0)
    assert 0.5 <= run.state_of("tau") <= 10.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tau": -1.0}, "`tau` of Threshold"),
        ({"density": 0.0}, "`density` of Threshold"),
        ({"tau": 0.0, "density": 0.1}, "None with tau=0"),
        ({"tau": 1.0, "clip": 0.5}, "`clip` of Threshold"),
        ({"tau": 1.0, "dense_below": -1}, "`dense_below` of Threshold"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Threshold(**settings)


def test_what_no_sample_has_seen_is_kept_whatever_the_bound():
    size = 48_000
    vector = np.zeros(size, np.float32)
    # Of that size every third is a part of the first sample, from 0 on.
    vector[1] = 3.0
    run = runs.Run(Threshold(density=1 / 250, clip=5.0), size)
    sent = run.send(vector)
    assert run.state_of("tau") == 0.0
    np.testing.assert_array_equal(sent + run.state_of("residual"), vector)
