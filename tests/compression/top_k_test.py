"""The largest elements against NumPy, bit by bit."""

import numpy as np
import pytest
import tensorflow as tf

from tests.compression import runs
from tfdist.compression import TopK
from tfdist.compression import base
from tfdist.compression import top_k

SIZE = 203


def oracle(vectors, ratio, momentum=0.0, nesterov=False, masking=True):
    """Yields (indices, what is sent, residual, momentum)."""
    m = np.float32(momentum)
    residual = velocity = np.zeros(vectors.shape[1], np.float32)
    for vector in vectors:
        if nesterov:
            velocity = m * velocity + m * vector
            total = residual + (velocity + vector)
        else:
            velocity = m * velocity + vector
            total = residual + velocity
        count = int(np.ceil(ratio * vector.size))
        indices = np.sort(np.argsort(-np.abs(total))[:count])
        sent = np.zeros_like(total)
        sent[indices] = total[indices]
        residual = total - sent
        if masking:
            velocity = np.where(sent != 0, np.float32(0), velocity)
        yield indices, sent, residual, velocity


def few_bits(count):
    """Vectors whose products with 0.5 are exact: XLA may fuse or not."""
    return (runs.vectors(SIZE, count) * 1024).round() / np.float32(1024)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.5, "masking": False},
        {"momentum": 0.5, "nesterov": True},
    ],
    ids=["error feedback", "no masking", "nesterov"],
)
def test_it_is_the_rule_to_the_bit(settings):
    codec = TopK(0.05, dense_below=0, entropy=False, **settings)
    run = runs.Run(codec, SIZE)
    vectors = few_bits(5)
    for vector, (indices, sent, residual, velocity) in zip(
        vectors, oracle(vectors, 0.05, **settings), strict=True
    ):
        message = run.encode(vector)
        runs.same(run.decode(message), sent)
        runs.same(run.state_of("residual"), residual)
        runs.same(message.values, sent[indices])
        if "momentum" in settings:
            runs.same(run.state_of("momentum"), velocity)
        # 11 of 203: index and value.
        assert int(codec.bytes(message)) == 4 + 11 * 8


def test_entropy_coding_changes_bytes_alone():
    plain = runs.Run(TopK(0.05, entropy=False, dense_below=0), SIZE)
    coded = runs.Run(TopK(0.05, dense_below=0), SIZE)
    for vector in runs.vectors(SIZE, 3):
        long, short = plain.encode(vector), coded.encode(vector)
        runs.same(plain.decode(long), coded.decode(short))
        assert int(coded.codec.bytes(short)) < int(plain.codec.bytes(long))


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_with_all_elements_it_is_the_uncompressed_method(momentum):
    run = runs.Run(TopK(1, momentum=momentum, dense_below=0), SIZE)
    velocity = np.zeros(SIZE, np.float32)
    for vector in few_bits(3):
        velocity = np.float32(momentum) * velocity + vector
        message = run.encode(vector)
        assert runs.kind_of(message) == base.DENSE
        runs.same(run.decode(message), velocity)


def test_momentum_holds_for_small_vectors_too():
    run = runs.Run(TopK(0.1, momentum=0.5), SIZE)
    assert run.state.keys() == {"momentum"}
    runs.same(run.send(np.ones(SIZE)), np.ones(SIZE, np.float32))
    runs.same(run.send(np.ones(SIZE)), np.full(SIZE, 1.5, np.float32))


def test_the_warm_up_sends_a_quarter_first_and_a_quarter_of_that_next():
    size = 4096
    run = runs.Run(TopK(1 / 512, warmup=8), size)
    counts = [
        run.encode(vector).values.shape[0] for vector in runs.vectors(size, 10)
    ]
    assert counts == [1024] * 2 + [256] * 2 + [64] * 2 + [16] * 2 + [8] * 2


def test_of_large_vectors_a_sample_says_what_is_large(monkeypatch):
    monkeypatch.setattr(top_k, "_EXACT", 1 << 15)
    size = 1 << 15
    run = runs.Run(TopK(0.01), size)
    for vector in runs.vectors(size, 3):
        before = run.state_of("residual")
        message = run.encode(vector)
        # Of 8,192 a share of 1/100 is 82, known to a tenth.
        assert 0.6 < message.values.shape[0] / (0.01 * size) < 1.6
        sent = run.decode(message)
        runs.same(sent + run.state_of("residual"), before + vector)
        assert np.abs(sent)[sent != 0].min() > np.abs(
            run.state_of("residual")
        ).max() * (1 - 1e-5)


def test_of_large_vectors_that_are_all_alike_everything_is_sent(monkeypatch):
    monkeypatch.setattr(top_k, "_EXACT", 1 << 15)
    vector = tf.ones([1 << 15])
    codec = TopK(0.01)
    message, _ = codec.encode(vector, codec.state(1 << 15))
    runs.same(codec.decode(message, 1 << 15), vector)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ratio": 0}, "`ratio` of TopK"),
        ({"ratio": 1.5}, "`ratio` of TopK"),
        ({"momentum": 1.0}, "`momentum` of TopK"),
        ({"warmup": -1}, "`warmup` of TopK"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        TopK(**settings)


def test_all_of_few_elements_of_a_large_vector_are_sent():
    size = 2**20
    vector = np.zeros(size, np.float32)
    places = np.random.default_rng(0).choice(size, size // 400, replace=False)
    vector[places] = runs.vectors(places.size, 1)[0]
    # More may be sent: one in a hundred.
    sent = runs.Run(TopK(0.01), size).send(vector)
    np.testing.assert_array_equal(sent, vector)
