"""What becomes of gradients when a ledger begins a new epoch."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfdist.runtime import runtime
from tfdist.runtime.coordination import coordination
from tfdist.runtime.coordination import epoch_fence
from tfdist.runtime.variables import traced_calls
from tfdist.synchronization import SoftSync
from tfdist.synchronization import events
from tfdist.synchronization import state as state_lib
from tfdist.synchronization.state import Phase
from tfdist.synchronization.state import Status

WORKERS = 3


def empty():
    zeros = tf.zeros([state_lib.size(WORKERS)], tf.int64)
    return state_lib.State.unpack(zeros, WORKERS)


def arrived(state, *workers):
    """Gradients of workers have arrived, in this order."""
    for worker in workers:
        mask = tf.constant([k == worker for k in range(WORKERS)])
        state = state.set(
            mask,
            status=Status.JOINED,
            phase=Phase.ARRIVED,
            key=100 + state.arrivals,
            order=state.arrivals,
            pushed=state.pushed + 1,
        )
        state = dataclasses.replace(state, arrivals=state.arrivals + 1)
    return state


def applied(state, worker, *, first=1, count=1):
    """A gradient that has arrived is written to the log."""
    mask = tf.constant([k == worker for k in range(WORKERS)])
    state = state.append(mask, first=first, count=count)
    return state.set(mask, phase=Phase.COMPUTING)


def run(state, *, same, executed, updates, expected=(True,) * WORKERS):
    made = epoch_fence.EpochFence(None, None, WORKERS)
    new, lost, torn = made._next(
        state,
        tf.constant(same),
        tf.constant(executed, tf.int64),
        tf.constant(updates, tf.int64),
        tf.constant(expected),
        tf.constant(10**15, tf.int64),
    )
    return new, lost.numpy().tolist(), int(torn)


def check_counts(state):
    """Every gradient that has arrived is accounted for."""
    np.testing.assert_array_equal(
        state.pushed.numpy(), (state.accepted + state.dropped).numpy()
    )


def test_gradients_that_lie_undecided_are_lost():
    state = applied(arrived(empty(), 0), 0)
    state = arrived(state, 1, 2)
    new, lost, torn = run(
        state, same=[True, False], executed=[1, 0], updates=[1, 0]
    )
    assert (lost, torn) == ([0, 1, 1], 0)
    check_counts(new)
    assert new.phase.numpy().tolist() == [Phase.COMPUTING] * WORKERS
    assert int(new.head) == 0
    assert int(new.version) == 1
    # Who was there is there.
    assert new.status.numpy().tolist() == [Status.JOINED] * WORKERS


def test_a_part_of_an_update_is_lost():
    state = applied(arrived(empty(), 0), 0)
    # Two of three gradients of the next update, which all have added up.
    state = applied(arrived(state, 1), 1, first=1, count=0)
    state = applied(arrived(state, 0), 0, first=0, count=0)
    new, lost, torn = run(
        state, same=[True, False], executed=[3, 0], updates=[1, 0]
    )
    assert (lost, torn) == ([1, 1, 0], 0)
    assert new.accepted.numpy().tolist() == [1, 0, 0]
    assert int(new.in_round) == 0
    check_counts(new)


@pytest.mark.parametrize(
    ("executed", "lost", "torn"),
    [
        ([3, 3, 0], [0, 0, 0], 0),
        # The third server, which was lost, counts for nothing.
        ([3, 2, 9], [0, 0, 0], 1),
        ([1, 2, 0], [0, 0, 1], 1),
        ([0, 0, 0], [1, 1, 1], 0),
    ],
)
def test_what_no_server_has_applied_is_lost_and_what_some_have_is_torn(
    executed, lost, torn
):
    state = empty()
    for worker in range(WORKERS):
        state = applied(arrived(state, worker), worker)
    new, found, number = run(
        state, same=[True, True, False], executed=executed, updates=executed
    )
    assert (found, number) == (lost, torn)
    check_counts(new)


def test_a_log_that_has_gone_round_counts_what_it_still_holds():
    state, size = empty(), state_lib.log_size(WORKERS)
    for number in range(size + 5):
        state = applied(arrived(state, number % WORKERS), number % WORKERS)
    head = int(state.head)
    new, lost, torn = run(
        state,
        same=[True, True, False],
        executed=[head, head - 2, 0],
        updates=[head, head - 2, 0],
    )
    assert (sum(lost), torn) == (0, 2)
    assert int(new.version) == head
    check_counts(new)


def test_what_had_arrived_by_a_snapshot_is_as_if_it_had_not_been_sent():
    state = applied(arrived(empty(), 0, 1), 0)
    new, lost, torn = run(
        state, same=[False, True], executed=[1, 1], updates=[1, 1]
    )
    assert (lost, torn) == ([0, 0, 0], 0)
    assert new.pushed.numpy().tolist() == [1, 0, 0]
    check_counts(new)


def test_without_the_first_server_who_is_there_is_expected():
    new, lost, torn = run(
        empty(),
        same=[False, True],
        executed=[0, 40],
        updates=[0, 17],
        expected=[True, False, True],
    )
    assert (lost, torn) == ([0, 0, 0], 0)
    # It goes on from what the others have done.
    assert int(new.version) == 17
    assert new.status.numpy().tolist() == [
        Status.EXPECTED,
        Status.GONE,
        Status.EXPECTED,
    ]


def test_who_is_gone_is_forgotten_again_by_a_server_that_comes_back():
    """Its snapshot has what was kept of a worker when that was there."""
    state = applied(arrived(empty(), 0, 1), 1)
    gone = tf.constant([False, True, False])
    state = events.forget(state.set(gone, status=Status.GONE))
    assert state.remembered.numpy().tolist() == [0, 0, 0]
    new, _, _ = run(state, same=[True, False], executed=[2, 0], updates=[1, 0])
    forgotten = events.forgettable(new).numpy()
    assert forgotten.tolist() == [False, True, False]


class Worker:
    """A worker under SoftSync with two servers, which are in this process.

    Attributes:
      coordination: Its `Coordination`.
      ledger: Its `Ledger`.
      runtime: Its `Runtime`.
    """

    def __init__(self, worker_id):
        home, *servers = (
            device.name for device in tf.config.list_logical_devices("CPU")[:3]
        )
        parts = runtime.Parts(
            coordination=functools.partial(
                coordination.Coordination,
                method=SoftSync(2).resolve(WORKERS),
                correction=None,
                worker_names=[f"worker {k}" for k in range(WORKERS)],
                worker_id=worker_id,
                worker_timeout=10.0,
                start_timeout=10.0,
                members_table=None,
            )
        )
        self.runtime = runtime.Runtime(
            parts,
            namespace="epoch_fence_test",
            devices=servers,
            worker_device=home,
            worker_id=worker_id,
            is_chief=worker_id == 0,
            timeout=10.0,
        )
        self.coordination = self.runtime.coordination
        self.ledger = self.coordination._ledger_named("0")

    def put(self, state, executed):
        """Servers have that state, and have carried out as much of the log."""
        ledger = self.ledger

        def build():
            tf.raw_ops.AssignVariableOp(
                resource=ledger.state_handle(), value=state.pack()
            )
            for shard, number in enumerate(executed):
                ledger.executed(shard).set(number)

        traced_calls.trace(build)()

    def read(self):
        """Entries that the servers have carried out, and their epochs."""
        ledger = self.ledger

        def build():
            counters = [
                counter(shard).read()
                for counter in (ledger.executed, ledger.epoch)
                for shard in (0, 1)
            ]
            with tf.device(self.runtime.store.worker_device):
                return tf.stack(counters)

        return np.split(traced_calls.trace(build)().numpy(), 2)


# By number.
worker = functools.cache(Worker)
# Of servers: no two processes have the same.
_lives = itertools.count(1)


@pytest.mark.nightly
@pytest.mark.parametrize("server", [1, 0])
def test_who_dies_in_the_middle_leaves_the_new_epoch_to_the_next(
    monkeypatch, server
):
    fence = worker(0).ledger._renewal
    monkeypatch.setattr(fence, "_functions", {})
    whole = fence._renew_server

    def torn(shard, *args):
        if shard < server:
            return whole(shard, *args)
        return [tf.debugging.Assert(False, ["its worker is gone"])]

    monkeypatch.setattr(fence, "_renew_server", torn)
    state = applied(arrived(applied(arrived(empty(), 0), 0), 1), 1)
    worker(0).put(state, executed=[2, 2])
    before = worker(0).read()[1]
    lives = [0, next(_lives)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="is gone"):
        worker(0).ledger.renew(lives)
    # What workers send of the old epoch counts no more.
    assert worker(0).read()[1][0] > before[0]
    ledger = worker(1).ledger
    assert ledger.renew(lives).began
    executed, epochs = worker(1).read()
    assert executed.tolist() == [0, 0]
    assert epochs.tolist() == [ledger._known_epoch] * 2
    assert int(ledger.tick().version) == 2
    assert not ledger.renew(lives).began


def test_a_worker_that_noticed_nothing_learns_of_a_new_epoch_by_heartbeats():
    """Its steps do not use the server that was lost."""
    ledger, other = worker(0).ledger, worker(1).ledger
    lives = [0, next(_lives)]
    for one in (ledger, other):
        one.renew(lives)
        one.tick()
    lives[1] = next(_lives)
    other.renew(lives)
    made = worker(0).coordination
    assert not made.is_behind
    made.tick()
    assert made.is_behind
    assert not worker(1).coordination.is_behind
    ledger.renew(lives)
    assert not made.is_behind
    # A heartbeat that was under way when the worker itself learned of it.
    tick = ledger._tick

    def late(*args):
        told = tick(*args)
        ledger.renew([0, next(_lives)])
        return told

    ledger._tick = late
    made.tick()
    ledger._tick = tick
    assert not made.is_behind


def test_no_branch_under_the_locks_runs_on_the_worker():
    function = tf.function(worker(1).ledger._renewal._build, autograph=False)
    graph = function.get_concrete_function(
        tf.TensorSpec([2], tf.int64),
        tf.TensorSpec([WORKERS], tf.bool),
        tf.TensorSpec([], tf.int64),
    ).graph
    branches = {
        tf.DeviceSpec.from_string(op.device).device_index
        for op in graph.get_operations()
        if op.type in ("If", "StatelessIf")
    }
    assert branches == {1, 2}


def test_what_is_lost_does_not_count_as_accepted(monkeypatch):
    made = worker(0).coordination
    told = tf.Variable(3, dtype=tf.int64)
    monkeypatch.setattr(worker(0).ledger, "_told_accepted", told)
    state = empty()
    for first, count in ((1, 0), (0, 2), (1, 0)):
        state = applied(arrived(state, 0), 0, first=first, count=count)
    expected = [True] * WORKERS

    def counts():
        found = made.counts()["worker 0"]
        return [found[kind] for kind in ("pushed", "accepted", "dropped")]

    # The first server is lost, and what it has counted.
    lives = [next(_lives), 0]
    worker(0).put(empty(), executed=[0, 3])
    made.renew(lives, expected)
    assert counts() == [3, 3, 0]
    # The second one is, and the gradient that did not fill an update.
    monkeypatch.setattr(worker(0).runtime.recovery, "incarnations", lives)
    worker(0).put(state, executed=[3, 3])
    made.renew([lives[0], next(_lives)], expected)
    assert counts() == [3, 2, 1]
