"""Events as functions of vectors: what is packed comes out again."""

import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tfdist.synchronization import BoundedStaleness
from tfdist.synchronization import SoftSync
from tfdist.synchronization import Sync
from tfdist.synchronization import events
from tfdist.synchronization import state as state_lib
from tfdist.synchronization import traced_events
from tfdist.synchronization.state_machine import Decisions

WORKERS = 3
PATIENCE = events.Patience.of_seconds(silent=9, missing=1000, idle=1000)
SECOND = 1_000_000
NOTHING_TOLD = [False] * len(traced_events.TOLD)
METHODS = [Sync(1), BoundedStaleness(1), SoftSync(2)]


def unpack(vector):
    return state_lib.State.unpack(vector, WORKERS)


def values(state):
    return state.pack().numpy().tolist()


def empty():
    return tf.zeros([state_lib.size(WORKERS)], tf.int64)


def attendance(now, rng):
    """One in which all is known; few have ended or were told to leave."""

    def times():
        return tf.constant(SECOND * (now - rng.integers(0, 12, WORKERS)))

    return events.Attendance(
        now=tf.constant(SECOND * now, tf.int64),
        heard=times(),
        ended=tf.constant(rng.random(WORKERS) < 0.1),
        entered=times(),
        preempted=tf.constant(rng.random(WORKERS) < 0.1),
    )


@pytest.mark.parametrize(
    "method",
    nightly.also([BoundedStaleness(1)], [SoftSync(2), Sync(1)]),
    ids=repr,
)
def test_they_decide_what_the_state_machine_decides(method):
    """Whatever happens; the state machine is asked eagerly, field by field."""
    rng = np.random.default_rng(1 + METHODS.index(method))
    decisions = Decisions(method, PATIENCE, forgets=True)
    traced = traced_events.traced_events(decisions, WORKERS)
    vector, woken_once, dropped_once = empty(), False, False
    for now in range(100, 140):
        old, there = unpack(vector), attendance(now, rng)
        worker = int(rng.integers(WORKERS))
        if rng.random() < 0.2:
            told = rng.random(len(NOTHING_TOLD)) < 0.3
            vector, woken, over, enlisted = traced.call(
                "tick",
                vector,
                traced_events.event(there, worker),
                tf.constant(told),
            )
            wanted = decisions.tick(
                old,
                there,
                worker,
                **dict(zip(traced_events.TOLD, map(bool, told), strict=True)),
            )
            assert bool(over) == bool(events.may_go_on(wanted, worker))
            assert enlisted == np.count_nonzero(wanted.enlisted)
        else:
            key = tf.constant(1000 * now + worker, tf.int64)
            finite = bool(rng.random() < 0.9)
            pulled = old.version - int(rng.integers(0, 2))
            event = traced_events.event(
                there, worker, key=key, pulled=pulled, finite=finite
            )
            vector, woken = traced.call("arrive", vector, event)
            wanted = decisions.arrive(
                old,
                worker,
                key=key,
                pulled=pulled,
                attendance=there,
                finite=tf.constant(finite),
            )
        assert vector.numpy().tolist() == values(wanted)
        assert woken.numpy().tolist() == (
            (old.waiting & ~wanted.waiting).numpy().tolist()
        )
        woken_once |= bool(tf.reduce_any(woken))
        for other in range(WORKERS):
            before, phase = unpack(vector), unpack(vector).phase[other]
            staged = tf.constant(rng.integers(0, 1000 * now, (WORKERS, 4)))
            vector, *outcome = traced.call(
                "collect", vector, traced_events.event(there, other), staged
            )
            wanted, void = events.fence(before, other, staged, there, PATIENCE)
            check_outcome(outcome, wanted, other, void)
            if phase in (state_lib.Phase.GRANTED, state_lib.Phase.DROPPED):
                wanted = events.go_on(wanted, other, there.now)
            dropped_once |= phase == state_lib.Phase.DROPPED
            assert vector.numpy().tolist() == values(wanted)
    assert dropped_once
    assert woken_once or not method.waits


def check_outcome(outcome, state, worker, void):
    """What a worker is told is what the state says, before it goes on."""
    accepted, staleness, arrival, head, log = outcome
    assert accepted == (state.phase[worker] != state_lib.Phase.DROPPED)
    assert (staleness, arrival, head) == (
        state.staleness[worker],
        state.order[worker],
        state.head,
    )
    columns = ("key", "staleness", "first", "count", "worker")
    for row, column in zip(log, columns, strict=False):
        assert row.numpy().tolist() == (
            getattr(state, f"log_{column}").numpy().tolist()
        )
    assert log[5, :WORKERS].numpy().tolist() == void.numpy().tolist()


def test_who_goes_on_at_once_has_arrived_and_been_told():
    rng = np.random.default_rng(5)
    decisions = Decisions(SoftSync(2), PATIENCE)
    traced = traced_events.traced_events(decisions, WORKERS)
    one = other = empty()
    for now in range(100, 110):
        event = traced_events.event(
            attendance(now, rng), now % WORKERS, key=now * SECOND, pulled=0
        )
        staged = tf.zeros([WORKERS, 4], tf.int64)
        one, *outcome = traced.call("submit", one, event, staged)
        other, _ = traced.call("arrive", other, event)
        other, *wanted = traced.call("collect", other, event, staged)
        assert one.numpy().tolist() == other.numpy().tolist()
        for mine, theirs in zip(outcome, wanted, strict=True):
            assert mine.numpy().tolist() == theirs.numpy().tolist()


@pytest.mark.parametrize(
    "method", nightly.also(METHODS[1:2], [METHODS[0], METHODS[2]]), ids=repr
)
def test_what_an_epoch_that_has_ended_sends_changes_nothing(method):
    rng = np.random.default_rng(7)
    decisions = Decisions(method, PATIENCE)
    traced = traced_events.traced_events(decisions, WORKERS)
    there = attendance(100, rng)
    event = traced_events.event(there, 1, key=5, pulled=0)
    vector, _ = traced.call("arrive", empty(), event)
    void = traced_events.event(there, 1, key=6, pulled=0, current=False)
    staged = tf.fill([WORKERS, 4], tf.constant(9, tf.int64))
    after, woken = traced.call("arrive", vector, void)
    assert not tf.reduce_any(woken)
    assert after.numpy().tolist() == vector.numpy().tolist()
    for name in ("collect", "submit"):
        after, accepted, *_ = traced.call(name, vector, void, staged)
        assert not accepted
        assert after.numpy().tolist() == vector.numpy().tolist()


def test_they_are_traced_once_for_all_ledgers_of_a_process():
    class Own(Sync):
        """Somebody's own, which may compare equal to what it is not."""

    one, same, other, longer = (
        traced_events.traced_events(Decisions(method, PATIENCE), number)
        for method, number in (
            (Sync(), 2),
            (Sync(), 2),
            (Sync(on_drop="retry"), 2),
            (Sync(), 3),
        )
    )
    assert one is same
    assert len({id(one), id(other), id(longer)}) == 3
    mine, yours = (
        traced_events.traced_events(Decisions(Own(), PATIENCE), 2)
        for _ in range(2)
    )
    assert mine is not yours
