"""Seide's rule against NumPy, bit by bit."""

import numpy as np

from tests.compression import runs
from tfdist.compression import OneBit

SIZE = 1024 + 300


def oracle(vectors):
    """Yields (what is sent, residual)."""
    residual = np.zeros(vectors.shape[1], np.float32)
    for vector in vectors:
        total, sent = residual + vector, np.zeros_like(vector)
        for begin in range(0, total.size, 1024):
            block = total[begin : begin + 1024]
            for some in (block >= 0, block < 0):
                if some.any():
                    sent[begin : begin + 1024][some] = block[some].mean()
        residual = total - sent
        yield sent, residual


def dyadic(size, count):
    """Vectors whose means come to the same in any order of addition."""
    rng = np.random.default_rng(2)
    found = rng.integers(-64, 64, (count, size)).astype(np.float32) / 16
    # As many of each sign as a power of two: quotients are exact.
    found[:, :1024] = np.abs(found[:, :1024])
    found[:, :512] = -1 / 16 - found[:, :512]
    found[:, 1024:] = np.abs(found[:, 1024:])
    found[:, 1024:1280] = -1 / 16 - found[:, 1024:1280]
    found[:, 1288:] = 0.0
    return found


def test_the_first_message_to_the_bit():
    run = runs.Run(OneBit(), SIZE)
    (vector,) = dyadic(SIZE, 1)
    ((sent, residual),) = oracle(vector[None])
    message = run.encode(vector)
    runs.same(run.decode(message), sent)
    runs.same(run.state_of("residual"), residual)
    bits = np.unpackbits(message.data.numpy(), bitorder="little")
    runs.same(bits[:SIZE], (vector >= 0).astype(np.uint8))
    # Two blocks: 128 bytes of bits and two means each.
    assert int(run.codec.bytes(message)) == 4 + 2 * (128 + 8)


def test_more_messages_but_for_the_order_of_addition():
    run = runs.Run(OneBit(), SIZE)
    vectors = runs.vectors(SIZE, 5)
    for vector, (sent, residual) in zip(vectors, oracle(vectors), strict=True):
        before = run.state_of("residual")
        decoded = run.send(vector)
        np.testing.assert_allclose(decoded, sent, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(
            run.state_of("residual"), residual, rtol=1e-4, atol=1e-4
        )
        runs.same(run.state_of("residual"), before + vector - decoded)
