"""Workers that come back: after a kill, after `fit`, or never."""

import pytest

from tests.synchronization.virtual_cluster import SECOND
from tests.synchronization.virtual_cluster import Cluster
from tfdist.synchronization import BoundedStaleness
from tfdist.synchronization import Sync
from tfdist.synchronization.state import Status


def test_a_gradient_lost_in_a_kill_is_no_finished_step():
    cluster = Cluster(BoundedStaleness(0), 2)
    assert not cluster.step(0)  # Killed while it waits, and started again.
    assert not cluster.step(0)
    assert cluster.step(1)
    assert cluster.decided() == {0}
    assert cluster.read().clock.tolist() == [1, 1]


@pytest.mark.parametrize("method", [Sync(), BoundedStaleness(0)])
@pytest.mark.parametrize("ahead", [0, 5])
def test_in_a_second_fit_all_begin_together(method, ahead):
    cluster = Cluster(method, 2)
    assert not cluster.step(0)
    assert cluster.step(1)
    cluster.proceed(0)
    cluster.leave(1)
    for _ in range(ahead):
        assert cluster.step(0)
    cluster.leave(0)
    for _ in range(3):
        version = int(cluster.read().version)
        assert not cluster.step(1, pulled=version)
        assert cluster.step(0, pulled=version)
        assert cluster.decided() == {1}
        cluster.proceed(1)


def test_who_failed_is_not_expected_in_a_second_fit():
    cluster = Cluster(Sync(), 2)
    assert not cluster.step(0)
    assert cluster.step(1)
    cluster.proceed(0)
    cluster.ended[1] = True
    cluster.tick()
    cluster.leave(0)
    assert cluster.step(0)


def test_who_comes_back_from_a_failure_ends_its_training_alone():
    cluster = Cluster(Sync(), 2)
    assert not cluster.step(0)
    assert cluster.step(1)
    cluster.proceed(0)
    cluster.ended[1] = True
    cluster.tick()
    cluster.leave(0)
    cluster.ended[1] = False
    assert cluster.step(1)
    assert cluster.statuses()[0] == Status.GONE


@pytest.mark.nightly
def test_who_was_told_to_go_on_and_does_not_is_not_waited_for():
    cluster = Cluster(Sync(), 2, idle=600)
    assert not cluster.step(0)
    assert cluster.step(1)  # Worker 0 may go on, and hangs.
    assert not cluster.step(1)
    for _ in range(7):
        cluster.now += 100 * SECOND
        cluster.heard[:] = cluster.now
        cluster.tick()
    assert cluster.decided() == {0, 1}


def test_a_second_gradient_within_one_update_waits_for_its_end():
    cluster = Cluster(Sync(), 2)
    assert not cluster.step(0)  # Accepted; killed, and started again.
    assert not cluster.step(0)
    assert cluster.step(1)
    state = cluster.read()
    assert state.accepted.tolist() == [1, 1]
    assert state.dropped.tolist() == [1, 0]
    assert cluster.decided() == {0}
