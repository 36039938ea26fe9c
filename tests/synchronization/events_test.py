"""Who is waited for, and for how long, whatever the method."""

import numpy as np
import pytest
import tensorflow as tf

from tests.synchronization.virtual_cluster import SECOND
from tests.synchronization.virtual_cluster import START
from tests.synchronization.virtual_cluster import Cluster
from tfdist.synchronization import Async
from tfdist.synchronization import BoundedStaleness
from tfdist.synchronization import SoftSync
from tfdist.synchronization import Sync
from tfdist.synchronization import events
from tfdist.synchronization import state as state_lib
from tfdist.synchronization.state import Phase
from tfdist.synchronization.state import Status

EXPECTED, JOINED, GONE = Status
SILENT, MISSING, IDLE = 60, 300, 600


def make(method, num_workers):
    return Cluster(
        method, num_workers, silent=SILENT, missing=MISSING, idle=IDLE
    )


def pass_time(cluster, seconds, heard=()):
    """Lets time pass; at its end `heard` are heard of."""
    cluster.now += int(seconds * SECOND)
    for worker in heard:
        cluster.heard[worker] = cluster.now
    cluster.tick()


def test_expected_are_waited_for_from_the_first_arrival_on():
    cluster = make(Sync(), 2)
    cluster.heard[1] = 0  # Never.
    pass_time(cluster, 10 * MISSING, heard=[0])
    assert cluster.statuses() == [EXPECTED, EXPECTED]
    cluster.step(0)
    pass_time(cluster, MISSING, heard=[0])
    assert cluster.statuses() == [JOINED, EXPECTED]
    assert cluster.waiting() == {0}
    pass_time(cluster, 1e-6, heard=[0])
    assert cluster.statuses() == [JOINED, GONE]
    assert cluster.decided() == {0}


def test_expected_that_is_heard_of_and_never_arrives_is_gone_too():
    cluster = make(Sync(), 2)
    cluster.step(0)
    pass_time(cluster, MISSING + 1, heard=[0, 1])
    assert cluster.statuses() == [JOINED, GONE]


def test_never_heard_of_is_not_silent():
    cluster = make(Sync(), 2)
    cluster.heard[:] = 0
    cluster.step(0)
    pass_time(cluster, SILENT + 1)
    assert cluster.statuses() == [JOINED, EXPECTED]


def test_expected_that_falls_silent_is_gone():
    cluster = make(Sync(), 2)
    pass_time(cluster, SILENT, heard=[0])
    assert cluster.statuses() == [EXPECTED, EXPECTED]
    pass_time(cluster, 1e-6, heard=[0])
    assert cluster.statuses() == [EXPECTED, GONE]


def test_silent_one_is_gone_until_it_arrives():
    cluster = make(BoundedStaleness(0), 2)
    cluster.step(1)
    cluster.step(0)
    cluster.proceed(1)
    pass_time(cluster, SILENT, heard=[0])
    assert cluster.statuses() == [JOINED, JOINED]
    pass_time(cluster, 1, heard=[0])
    assert cluster.statuses() == [JOINED, GONE]
    pass_time(cluster, 1, heard=[0, 1])
    assert cluster.statuses() == [JOINED, GONE]
    cluster.step(1)
    assert cluster.statuses() == [JOINED, JOINED]


def test_a_gradient_is_a_sign_of_life():
    """Though the heartbeat's thread does not get on."""
    cluster = make(Async(), 1)
    pass_time(cluster, SILENT - 1)
    cluster.step(0)
    pass_time(cluster, SILENT)
    assert cluster.statuses() == [JOINED]
    pass_time(cluster, 1)
    assert cluster.statuses() == [GONE]


def test_idle_one_is_gone():
    cluster = make(Async(), 2)
    cluster.step(0)
    cluster.step(1)
    pass_time(cluster, IDLE / 2, heard=[0, 1])
    cluster.step(0)
    pass_time(cluster, IDLE / 2, heard=[0, 1])
    assert cluster.statuses() == [JOINED, JOINED]
    pass_time(cluster, 1, heard=[0, 1])
    assert cluster.statuses() == [JOINED, GONE]


@pytest.mark.parametrize("method", [Sync(), BoundedStaleness(0)])
def test_one_that_waits_is_not_idle(method):
    cluster = make(method, 2)
    cluster.step(1)
    for _ in range(4):
        pass_time(cluster, MISSING / 4 - 1, heard=[0, 1])
    assert cluster.step(0)
    # It computes from now on; before, it was told to wait.
    cluster.proceed(1)
    assert not cluster.step(1)
    for _ in range(4):
        pass_time(cluster, IDLE / 4, heard=[0, 1])
    assert cluster.statuses() == [JOINED, JOINED]
    pass_time(cluster, 1, heard=[0, 1])
    assert cluster.statuses() == [GONE, JOINED]
    assert cluster.decided() == {1}


@pytest.mark.parametrize("arrives", [False, True])
def test_ended_one_is_gone_at_once(arrives):
    cluster = make(SoftSync(2), 2)
    if arrives:
        cluster.step(1)
    cluster.ended[1] = True
    cluster.tick()
    assert cluster.statuses() == [EXPECTED, GONE]


def test_returning_worker_enters_with_the_slowest():
    cluster = make(BoundedStaleness(9), 3)
    cluster.leave(2)
    for _ in range(4):
        cluster.step(0)
    for _ in range(6):
        cluster.step(1)
    assert cluster.step(2)
    assert cluster.read().clock.tolist() == [4, 6, 4]
    assert cluster.step(2)
    assert cluster.read().clock.tolist() == [4, 6, 5]


def test_returning_worker_that_was_ahead_stays_so():
    cluster = make(BoundedStaleness(9), 2)
    for _ in range(5):
        cluster.step(0)
    cluster.step(1)
    cluster.leave(0)
    cluster.step(0)
    assert cluster.read().clock.tolist() == [6, 1]


def test_returning_worker_that_is_alone_begins_anew():
    cluster = make(BoundedStaleness(9), 2)
    cluster.step(0)
    cluster.leave(0)
    cluster.leave(1)
    assert cluster.step(0)
    assert cluster.read().clock.tolist() == [1, 0]
    assert cluster.statuses() == [JOINED, EXPECTED]


@pytest.mark.parametrize(
    ("method", "outcome"),
    # Where it was accepted already, it counts; its successor has to wait.
    [
        (Sync(), {"accepted": 1, "dropped": 0}),
        (BoundedStaleness(0), {"accepted": 0, "dropped": 1}),
    ],
)
def test_killed_while_it_waits_and_restarted(method, outcome):
    cluster = make(method, 2)
    assert not cluster.step(0)
    cluster.step(0)
    state = cluster.read()
    assert state.pushed.tolist() == [2, 0]
    for name, number in outcome.items():
        assert getattr(state, name).tolist() == [number, 0]


@pytest.mark.nightly
def test_leaving_lets_those_go_on_who_wait():
    for method in (Sync(), BoundedStaleness(0)):
        cluster = make(method, 3)
        assert not cluster.step(0)
        assert not cluster.step(1)
        cluster.leave(2)
        assert cluster.statuses() == [JOINED, JOINED, GONE]
        assert cluster.decided() == {0, 1}


def test_arrival_is_noted():
    cluster = make(BoundedStaleness(0), 2)
    cluster.arrive(1, 17, 0)
    cluster.now += 5
    cluster.arrive(0, 23, 0)
    cluster.now += 2
    cluster.go_on(1)
    state = cluster.read()
    assert state.key.tolist() == [23, 17]
    assert state.order.tolist() == [1, 0]
    assert state.arrivals == 2
    assert state.started_at == START
    assert state.since.tolist() == [START + 5, START + 7]
    assert cluster.phases() == [Phase.GRANTED, Phase.COMPUTING]


@pytest.mark.parametrize("phase", Phase)
def test_decided_are_granted_or_dropped(phase):
    vector = tf.zeros([state_lib.size(3)], tf.int64)
    state = state_lib.State.unpack(vector, 3).set(
        tf.constant([False, True, False]), phase=phase
    )
    decided = phase in (Phase.GRANTED, Phase.DROPPED)
    for worker in (1, tf.constant(1, tf.int64)):
        assert bool(events.is_decided(state, worker)) == decided
    assert not events.is_decided(state, 0)


def test_patience_is_kept_in_microseconds():
    patience = events.Patience.of_seconds(silent=1.5, missing=2, idle=1e-6)
    assert patience == events.Patience(1_500_000, 2_000_000, 1)


def test_events_of_one_worker_leave_the_others_alone():
    cluster = make(Async(), 3)
    for worker in (0, 1, 2, 1):
        cluster.step(worker)
    before = cluster.read()
    cluster.step(1)
    cluster.leave(1)
    after = cluster.read()
    for name, value in vars(after).items():
        if value.shape == (3,):
            np.testing.assert_array_equal(
                value[[0, 2]], getattr(before, name)[[0, 2]], name
            )


@pytest.mark.parametrize(("entered", "status"), [(-1, JOINED), (1, GONE)])
def test_one_whose_process_is_another_now_is_gone(entered, status):
    """Until it arrives: the new process may be long in starting."""
    cluster = make(BoundedStaleness(3), 2)
    cluster.step(0)
    state = cluster.tensors()
    attendance = events.Attendance(
        tf.constant(cluster.now + 2),
        tf.constant(cluster.heard),
        tf.constant(cluster.ended),
        entered=tf.constant([cluster.now + entered, cluster.now + entered]),
    )
    patience = events.Patience.of_seconds(silent=60, missing=300, idle=600)
    state = events.attend(state, attendance, patience)
    # Who has never arrived is expected still.
    assert state.status.numpy().tolist() == [status, EXPECTED]


def fenced(cluster, worker, staged, ended=()):
    """The state after `events.fence`, and which keys are void."""
    state = cluster.tensors()
    workers = state.num_workers
    attendance = events.Attendance(
        tf.constant(cluster.now),
        tf.zeros([workers], tf.int64),
        tf.constant([k in ended for k in range(workers)]),
    )
    patience = events.Patience.of_seconds(silent=60, missing=300, idle=600)
    staged = tf.constant(staged, tf.int64)
    state, void = events.fence(state, worker, staged, attendance, patience)
    return state, void.numpy().tolist()


def test_what_may_still_arrive_or_be_decided_is_not_void():
    cluster = make(BoundedStaleness(0), 4)
    for worker in range(3):
        cluster.arrive(worker, key=100 * (worker + 1), pulled=0)
    # Nobody has told anything of the fourth, and the three wait for it.
    keys = cluster.read().key.tolist()
    staged = [[key, key - 10] for key in keys[:3]] + [[900, 800]]
    state, void = fenced(cluster, 0, staged)
    # Up to the key before: those that have arrived are undecided.
    assert void == [keys[0] - 1, keys[1] - 1, keys[2] - 1, 800]
    assert state.fence.numpy().tolist() == [key + 1 for key in void]
    # The dead one tells no more; the undecided ones of the dead still count.
    _, void = fenced(cluster, 0, staged, ended=(2, 3))
    assert void == [keys[0] - 1, keys[1] - 1, keys[2] - 1, 900]


def test_a_gradient_that_was_freed_is_not_accepted():
    cluster = make(BoundedStaleness(9), 2)
    state, void = fenced(cluster, 0, [[0, 0], [900, 0]], ended=(1,))
    assert void[1] == 900
    for key, accepted in ((900, 0), (901, 1)):
        arrived = events.arrive(
            state,
            1,
            key=tf.constant(key, tf.int64),
            pulled=tf.constant(0, tf.int64),
            now=tf.constant(cluster.now),
        )
        decided = BoundedStaleness(9).decide(arrived)
        assert decided.accepted.numpy().tolist() == [0, accepted]
        assert decided.dropped.numpy().tolist() == [0, 1 - accepted]
        assert not decided.nonfinite.numpy().any()


@pytest.mark.nightly
def test_who_is_gone_is_forgotten_once_its_last_gradient_is_decided():
    cluster = Cluster(BoundedStaleness(0), 2)

    def forgotten():
        """Who is, and the cluster's state after it."""
        before = cluster.tensors()
        after = events.forget(before)
        log = after.log_worker[int(before.head) : int(after.head)]
        keys = after.log_key[int(before.head) : int(after.head)]
        assert set(keys.numpy()) <= {state_lib.FORGET}
        cluster.set(after)
        return log.numpy().tolist()

    cluster.leave(1)
    assert forgotten() == []  # There is nothing of it.
    cluster.step(1)
    cluster.step(0)
    cluster.proceed(1)
    cluster.step(1)
    assert forgotten() == []  # It waits for the other.
    cluster.ended[1] = True
    cluster.tick()
    assert cluster.phases()[1] is Phase.ARRIVED
    assert forgotten() == []
    cluster.step(0)
    assert cluster.phases()[1] is Phase.GRANTED
    assert forgotten() == [1]
    assert forgotten() == []
    # It comes back, and goes again.
    cluster.ended[1] = False
    cluster.step(1)
    cluster.step(0)
    cluster.leave(1)
    cluster.tick()
    assert forgotten() == [1]


def test_who_comes_back_is_forgotten_before_its_next_gradient():
    """What it had left undecided is dropped, so nothing of it will follow."""
    cluster = Cluster(BoundedStaleness(0), 2)
    for _ in range(2):
        cluster.step(0)
        cluster.step(1)
        cluster.proceed(0)
    cluster.step(1)
    cluster.ended[1] = True
    cluster.tick()
    assert cluster.phases()[1] is Phase.ARRIVED
    state = cluster.tensors()
    head = int(state.head)
    assert events.forget(state).head == head
    after = events.forget(state, returning=1)
    assert after.head == head + 1
    place = head % after.log_key.shape[0]
    assert after.log_key[place] == state_lib.FORGET
    assert after.log_worker[place] == 1
    assert events.forget(state, returning=0).head == head
