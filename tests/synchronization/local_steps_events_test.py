"""Who is waited for where workers make many steps between two gradients."""

import pytest

from tests import nightly
from tests.synchronization.events_test import EXPECTED
from tests.synchronization.events_test import GONE
from tests.synchronization.events_test import IDLE
from tests.synchronization.events_test import JOINED
from tests.synchronization.events_test import make
from tests.synchronization.events_test import pass_time
from tests.synchronization.virtual_cluster import SECOND
from tfdist.synchronization import Sync


@pytest.mark.parametrize("has_arrived", nightly.also([False], [True]))
def test_one_that_makes_local_steps_is_neither_idle_nor_missing(has_arrived):
    """It has many to make between two exchanges."""
    cluster = make(Sync(), 2)
    if has_arrived:
        cluster.step(0)
        cluster.step(1)
        cluster.proceed(0)
    cluster.step(0)
    for _ in range(12):
        pass_time(cluster, IDLE / 4, heard=[0, 1])
        cluster.work_on(1)
        assert cluster.statuses() == [JOINED, JOINED]
        assert not cluster.proceed(0)
    pass_time(cluster, IDLE, heard=[0, 1])
    assert not cluster.proceed(0)
    pass_time(cluster, 1, heard=[0, 1])
    assert cluster.statuses() == [JOINED, GONE]
    assert cluster.proceed(0)


def test_work_of_one_that_is_gone_or_has_arrived_changes_nothing():
    cluster = make(Sync(), 3)
    cluster.step(0)
    cluster.leave(1)
    since = cluster.read().since.tolist()
    cluster.now += SECOND
    for worker in (0, 1):
        cluster.work_on(worker)
    assert cluster.read().since.tolist() == since
    assert cluster.statuses() == [JOINED, GONE, EXPECTED]


def test_nobody_waits_for_a_worker_after_its_last():
    cluster = make(Sync(), 3)
    for worker in range(3):
        cluster.step(worker)
    for worker in range(3):
        cluster.proceed(worker)
    assert not cluster.step(0, last=True)
    assert cluster.statuses() == [GONE, JOINED, JOINED]
    # It counts, and is told of the update that it is part of.
    assert not cluster.step(1)
    assert cluster.step(2)
    assert cluster.decided() == {0, 1}
    assert cluster.read().version == 2
    assert cluster.read().accepted.tolist() == [2, 2, 2]
    for worker in (0, 1):
        cluster.proceed(worker)
    assert cluster.statuses() == [GONE, JOINED, JOINED]
    assert not cluster.step(1)
    assert cluster.step(2)


def test_the_last_of_a_worker_begins_no_new_training():
    cluster = make(Sync(), 2)
    for worker in (0, 1):
        cluster.step(worker)
    for worker in (0, 1):
        cluster.proceed(worker)
        cluster.leave(worker)
    assert cluster.step(0, last=True)
    assert cluster.statuses() == [GONE, GONE]
    # A gradient that is not the last does: another `fit`.
    assert not cluster.step(1)
    assert cluster.statuses() == [EXPECTED, JOINED]


def test_one_that_begins_to_train_is_waited_for():
    """Its first gradient comes after many steps and is not to be late."""
    cluster = make(Sync(), 2)
    for worker in (0, 1):
        cluster.step(worker)
    for worker in (0, 1):
        cluster.proceed(worker)
    cluster.leave(1)
    assert cluster.step(0)
    cluster.join(1)
    assert cluster.statuses() == [JOINED, JOINED]
    version = cluster.read().version
    assert not cluster.step(0)
    assert cluster.step(1, pulled=version)
    assert cluster.read().dropped.tolist() == [0, 0]


def test_the_first_that_begins_again_expects_those_who_have_left():
    cluster = make(Sync(), 3)
    for worker in range(3):
        cluster.step(worker)
    for worker in range(3):
        cluster.proceed(worker)
        cluster.leave(worker)
    cluster.join(1)
    assert cluster.statuses() == [EXPECTED, JOINED, EXPECTED]
