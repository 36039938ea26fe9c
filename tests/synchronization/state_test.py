"""The state as one vector, and the log in it."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests import laws
from tfdist.synchronization import state as state_lib
from tfdist.synchronization.state import Phase
from tfdist.synchronization.state import State
from tfdist.synchronization.state import Status

SCALARS = {"version", "head", "in_round", "arrivals", "started_at"}


def fresh(num_workers):
    return State.unpack(
        tf.zeros([state_lib.size(num_workers)], tf.int64), num_workers
    )


def mask(num_workers, *workers):
    return tf.constant([k in workers for k in range(num_workers)])


@pytest.mark.parametrize("num_workers", [1, 2, 3, 6])
def test_packing_and_unpacking_keep_every_value(num_workers):
    size = state_lib.size(num_workers)
    vector = tf.range(100, 100 + size, dtype=tf.int64)
    state = State.unpack(vector, num_workers)
    assert state.num_workers == num_workers
    np.testing.assert_array_equal(state.pack(), vector)
    seen = []
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        assert value.dtype == tf.int64
        expected = [num_workers]
        if field.name in SCALARS:
            expected = []
        elif field.name.startswith("log_"):
            expected = [state_lib.log_size(num_workers)]
        assert value.shape == expected, field.name
        seen += np.ravel(value).tolist()
    assert sorted(seen) == vector.numpy().tolist()


@laws.settings(max_examples=20)
@given(num_workers=st.integers(1, 6), data=st.data())
def test_any_values_come_back(num_workers, data):
    size = state_lib.size(num_workers)
    numbers = st.integers(-(2**63), 2**63 - 1)
    values = data.draw(st.lists(numbers, min_size=10, max_size=10))
    vector = np.resize(np.array(values, np.int64), size)
    state = State.unpack(tf.constant(vector), num_workers)
    again = State.unpack(state.pack(), num_workers)
    for name, value in vars(state).items():
        np.testing.assert_array_equal(value, getattr(again, name), name)


def test_zeros_are_a_cluster_that_has_not_begun():
    state = fresh(3)
    assert state.status.numpy().tolist() == [Status.EXPECTED] * 3
    assert state.phase.numpy().tolist() == [Phase.COMPUTING] * 3
    assert state.present.numpy().all()
    assert not state.arrived.numpy().any()
    assert state.slowest_clock() == 0
    assert state.version == 0


def test_the_slowest_is_among_those_who_are_waited_for():
    state = fresh(4)
    for worker, (clock, status) in enumerate(
        [
            (3, Status.GONE),
            (5, Status.JOINED),
            (4, Status.EXPECTED),
            (9, Status.JOINED),
        ]
    ):
        state = state.set(mask(4, worker), clock=clock, status=status)
    assert state.slowest_clock() == 4


@laws.settings(max_examples=20)
@given(
    order=st.permutations(range(4)),
    chosen=st.sets(st.integers(0, 3)),
    head=st.integers(0, 60),
)
def test_gradients_enter_the_log_in_the_order_of_arrival(order, chosen, head):
    """At any place of the ring, one update each."""
    ring = state_lib.log_size(4)
    state = fresh(4)
    state = dataclasses.replace(
        state,
        head=tf.constant(head, tf.int64),
        version=tf.constant(20, tf.int64),
        order=tf.constant(order, tf.int64),
        key=tf.constant([70, 71, 72, 73], tf.int64),
        pulled=tf.constant([10, 11, 12, 13], tf.int64),
        log_key=tf.fill([ring], tf.constant(7, tf.int64)),
    )
    after = state.append(mask(4, *chosen), first=1, count=1)
    workers = sorted(chosen, key=lambda worker: order[worker])
    log = np.full([5, ring], 0)
    log[0] = 7
    for rank, worker in enumerate(workers):
        staleness = 20 + rank - (10 + worker)
        log[:, (head + rank) % ring] = [
            70 + worker,
            staleness,
            1,
            1,
            worker,
        ]
    np.testing.assert_array_equal(
        [
            after.log_key,
            after.log_staleness,
            after.log_first,
            after.log_count,
            after.log_worker,
        ],
        log,
    )
    remembered = after.remembered.numpy().tolist()
    assert remembered == [k in chosen for k in range(4)]
    assert after.head == head + len(chosen)
    assert after.version == 20 + len(chosen)
    assert after.in_round == 0
    assert after.accepted.numpy().tolist() == [k in chosen for k in range(4)]


def test_workers_are_forgotten_after_what_is_in_the_log():
    """Nothing else changes: neither the update under way, nor the counts."""
    state = fresh(3).set(mask(3, 0, 1, 2), key=[7, 8, 9], pulled=0)
    state = state.append(mask(3, 2), first=1, count=0)
    before = state.append(mask(3, 1), first=0, count=0)
    state = before.forget(mask(3, 1, 2))
    forget = state_lib.FORGET
    assert state.log_key[:4].numpy().tolist() == [9, 8, forget, forget]
    assert state.log_worker[:4].numpy().tolist() == [2, 1, 1, 2]
    assert state.log_first[:4].numpy().tolist() == [1, 0, 0, 0]
    assert state.log_count[:4].numpy().tolist() == [0, 0, 0, 0]
    assert state.remembered.numpy().tolist() == [0, 0, 0]
    assert state.head == 4
    for name in ("version", "in_round", "accepted", "staleness", "phase"):
        np.testing.assert_array_equal(
            getattr(state, name), getattr(before, name)
        )


def test_gradients_that_wait_for_an_update_are_in_its_round():
    state = fresh(2).set(mask(2, 0, 1), key=[8, 9])
    state = state.append(mask(2, 1), first=1, count=0)
    assert state.version == 0
    assert state.in_round == 1
    state = state.accept(mask(2, 1))
    assert state.contributed.numpy().tolist() == [0, 1]
    state = state.append(mask(2, 0), first=0, count=0)
    state = state.accept(mask(2, 0)).close_round(True)
    assert state.version == 1
    assert state.in_round == 0
    assert state.phase.numpy().tolist() == [Phase.GRANTED] * 2
    assert state.log_key[:3].numpy().tolist() == [9, 8, state_lib.NO_GRADIENT]
    assert state.log_first[:3].numpy().tolist() == [1, 0, 0]
    assert state.log_count[:3].numpy().tolist() == [0, 0, 2]


def test_a_round_that_is_not_complete_stays_as_it_is():
    state = fresh(2).set(mask(2, 0), phase=Phase.ACCEPTED)
    after = state.close_round(tf.constant(False))
    np.testing.assert_array_equal(state.pack(), after.pack())


def test_who_is_dropped_is_counted():
    state = fresh(3).drop(mask(3, 0, 2))
    phases = [Phase.DROPPED, Phase.COMPUTING, Phase.DROPPED]
    assert state.phase.numpy().tolist() == phases
    assert state.dropped.numpy().tolist() == [1, 0, 1]


def test_fields_are_read_from_where_they_are_packed():
    """What who has no tensors reads with."""
    vector = np.arange(state_lib.size(2))
    fields = State.unpack_array(vector, 2)
    for name, value in vars(State.unpack(vector, 2)).items():
        np.testing.assert_array_equal(getattr(fields, name), value, name)
