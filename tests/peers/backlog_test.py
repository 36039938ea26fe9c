"""What waits for a slow receiver: nothing is lost, and memory is bounded."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests import laws
from tfdist import compression
from tfdist.compression import base
from tfdist.peers import backlog as backlog_lib
from tfdist.peers import messages

SIZE = 2048
CODEC = compression.Threshold(2.0**-4)


def updates_of(vectors, scales):
    """Encoded updates, numbered from 1."""
    state = CODEC.state(SIZE)
    found = []
    for number, (vector, scale) in enumerate(
        zip(vectors, scales, strict=True), start=1
    ):
        message, state = CODEC.encode(tf.constant(vector), state)
        bits = np.float64(scale).view(np.int64)
        kind, *parts = (part.numpy() for part in message)
        header = [0, 1, number, number, 0, 0, bits, kind, 0, 0]
        header = np.array(header, np.int64)
        found.append(messages.PeerUpdate(header, *parts))
    return found


def sum_of(updates):
    """The sum of what is decoded, `(SIZE,)` float64."""
    total = np.zeros([SIZE])
    for update in updates:
        parts = update.kind, update.values, update.data
        message = base.Message(*map(tf.constant, parts))
        total += update.scale * CODEC.decode(message, SIZE).numpy()
    return total


def numbers_of(updates):
    """The numbers of all updates that are in them."""
    return [
        number
        for update in updates
        for number in range(
            update.header[messages.FIRST], update.header[messages.LAST] + 1
        )
    ]


@laws.settings(max_examples=20, deadline=None)
@hypothesis.given(
    st.lists(st.sampled_from(["put", "take"]), max_size=30),
    st.integers(0, 2**32 - 1),
)
def test_the_sum_and_the_numbers_are_those_of_what_was_put_in(calls, seed):
    rng = np.random.default_rng(seed)
    number = calls.count("put")
    # Sums of multiples of 2^-8 are exact.
    vectors = rng.integers(-31, 32, [number, SIZE]).astype("float32") * 2.0**-8
    updates = updates_of(vectors, 2.0 ** rng.integers(-3, 1, number))
    backlog = backlog_lib.Backlog(CODEC, SIZE, tf.float32)
    waiting, taken = iter(updates), []
    most = 0
    for call in calls:
        if call == "put":
            backlog.put(next(waiting))
        elif (update := backlog.take()) is not None:
            taken.append(update)
        most = max(most, len(backlog))
    assert backlog.updates == number - len(numbers_of(taken))
    while (update := backlog.take()) is not None:
        taken.append(update)
    assert numbers_of(taken) == [*range(1, number + 1)]
    np.testing.assert_array_equal(sum_of(taken), sum_of(updates))
    least = min((update.bytes for update in updates), default=1)
    assert most <= SIZE * 4 // least + 1


def test_what_is_summed_up_has_the_bytes_of_the_vector():
    vectors = np.ones([100, SIZE], "float32")
    updates = updates_of(vectors, np.ones(100))
    backlog = backlog_lib.Backlog(CODEC, SIZE, tf.float32)
    for update in updates:
        backlog.put(update)
    assert len(backlog) == 1
    assert backlog.updates == 100
    taken = backlog.take()
    assert taken.values.nbytes == SIZE * 4
    # 100 steps of one threshold each.
    np.testing.assert_array_equal(taken.values, np.full(SIZE, 100 * 2.0**-4))
    assert backlog.take() is None


@pytest.mark.nightly
def test_what_waits_for_a_joiner_is_not_summed_up_before_it_says_what_it_has():
    vectors = np.ones([100, SIZE], "float32")
    updates = updates_of(vectors, np.ones(100))
    backlog = backlog_lib.Backlog(CODEC, SIZE, tf.float32, holds=True)
    for update in updates[:50]:
        backlog.put(update)
    assert len(backlog) == 50 and not backlog.is_full
    # It has 20 of them with its first values.
    backlog.release(20)
    assert backlog.updates == 30
    for update in updates[50:]:
        backlog.put(update)
    taken = []
    while (update := backlog.take()) is not None:
        taken.append(update)
    assert numbers_of(taken) == [*range(21, 101)]
    np.testing.assert_array_equal(sum_of(taken), sum_of(updates[20:]))


def test_what_is_held_for_a_joiner_has_a_bound(monkeypatch):
    monkeypatch.setattr(backlog_lib, "_HELD_BYTES", 0)
    dense = compression.Cast("float32")
    backlog = backlog_lib.Backlog(dense, SIZE, tf.float32, holds=True)
    header = np.array([0, 1, 1, 1, 0, 0, 0, base.DENSE, 0, 0], np.int64)
    vector, nothing = np.zeros(SIZE, "float32"), np.zeros(0, "uint8")
    for _ in range(15):
        backlog.put(messages.PeerUpdate(header, vector, nothing))
    assert not backlog.is_full
    backlog.put(messages.PeerUpdate(header, vector, nothing))
    assert backlog.is_full
