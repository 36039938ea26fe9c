"""Workers that join later, and workers that are told to leave."""

import pytest

from tests.synchronization.virtual_cluster import Cluster
from tfdist.synchronization import BoundedStaleness
from tfdist.synchronization import SoftSync
from tfdist.synchronization import Sync
from tfdist.synchronization.state import Phase
from tfdist.synchronization.state import Reason
from tfdist.synchronization.state import Status


def may_go_on(cluster, worker):
    """What `events.may_go_on` says, of NumPy values."""
    state = cluster.read()
    excused = state.reason[worker] == Reason.PREEMPTED
    return excused and state.status[worker] == Status.GONE


@pytest.mark.parametrize("method", [Sync(), BoundedStaleness(0)])
def test_who_was_not_started_is_waited_for_once_it_has_joined(method):
    cluster = Cluster(method, 3, initial=1)
    for _ in range(3):
        assert cluster.step(0)
    # With a bound it begins where the slowest is.
    if not cluster.step(1):
        assert cluster.step(0)
        cluster.proceed(1)
    assert not cluster.step(0)
    assert cluster.step(1)


def test_backup_workers_are_of_those_that_are_there():
    cluster = Cluster(Sync(backup_workers=1), 4, initial=2)
    # The first of two.
    assert cluster.step(0)
    assert not cluster.step(2)
    # Two of three, now that the third has joined.
    assert cluster.step(1)
    assert cluster.decided() == {2}
    cluster.proceed(2)
    assert int(cluster.read().version) == 2


def test_softsync_follows_the_number_of_workers():
    # n = 1: an update of as many gradients as there are workers.
    cluster = Cluster(SoftSync(n=1), 3, initial=1)
    cluster.step(0)
    assert int(cluster.read().version) == 1
    for worker in (1, 0):
        cluster.step(worker)
    assert int(cluster.read().version) == 2
    for worker, version in ((2, 2), (1, 2), (0, 3)):
        cluster.step(worker)
        assert int(cluster.read().version) == version


def test_a_synchronous_worker_that_leaves_counts_in_the_update_under_way():
    cluster = Cluster(Sync(), 3)
    assert not cluster.step(0)
    cluster.excuse(0)
    assert may_go_on(cluster, 0) and not cluster.decided()
    # The update is still one of three.
    assert not cluster.step(1)
    assert cluster.step(2)
    assert cluster.read().accepted.tolist() == [1, 1, 1]
    assert cluster.decided() == {0, 1}
    cluster.proceed(1)
    # The next one of two.
    assert not cluster.step(1)
    assert cluster.step(2)
    assert int(cluster.read().version) == 2


def test_the_last_gradient_of_who_runs_ahead_counts_when_its_turn_comes():
    cluster = Cluster(BoundedStaleness(0), 2)
    assert not cluster.step(0)
    cluster.excuse(0)
    assert may_go_on(cluster, 0)
    # It is still no earlier in the parameters than the bound has it.
    assert cluster.phases()[0] == Phase.ARRIVED
    assert int(cluster.read().version) == 0
    assert cluster.step(1)
    assert cluster.read().accepted.tolist() == [1, 1]
    assert cluster.step(1)


def test_who_computes_is_not_excused_and_sends_one_gradient_more():
    cluster = Cluster(Sync(), 2)
    cluster.excuse(0)
    assert cluster.statuses()[0] == Status.EXPECTED
    assert not cluster.step(1)
    assert cluster.step(0)


def test_one_that_was_told_to_leave_comes_back():
    cluster = Cluster(Sync(), 2)
    assert not cluster.step(0)
    cluster.excuse(0)
    assert cluster.step(1)
    assert cluster.step(1)
    assert not cluster.step(0)
    assert cluster.statuses() == [Status.JOINED, Status.JOINED]
    assert not may_go_on(cluster, 0)
    assert cluster.step(1)
