"""Gradients that must not count: nobody waits for them, counts are exact."""

import numpy as np
import pytest

from tests.synchronization import virtual_cluster
from tfdist.synchronization import Async
from tfdist.synchronization import BoundedStaleness
from tfdist.synchronization import SoftSync
from tfdist.synchronization import Sync
from tfdist.synchronization.state import Phase

ARRIVED, GRANTED, DROPPED = Phase.ARRIVED, Phase.GRANTED, Phase.DROPPED
ACCEPTED, COMPUTING = Phase.ACCEPTED, Phase.COMPUTING


class Cluster(virtual_cluster.Cluster):
    """A cluster whose gradients may be refused."""

    def step(self, worker, finite=True):
        """A gradient of the newest version arrives; returns all phases."""
        for other in self.decided():
            self.go_on(other)
        state = self.read()
        self.arrive(worker, state.arrivals + 1, state.version, finite=finite)
        return self.phases()

    def counts(self):
        """By worker, the numbers pushed, accepted, dropped and not finite."""
        state = self.read()
        kinds = ("pushed", "accepted", "dropped", "nonfinite")
        return np.stack([getattr(state, k) for k in kinds], 1).tolist()


def test_sync_makes_the_update_of_the_others():
    cluster = Cluster(Sync(), 3)
    # It waits as if its gradient were part of the update.
    assert cluster.step(0, finite=False) == [ARRIVED, COMPUTING, COMPUTING]
    assert cluster.step(1) == [ARRIVED, ACCEPTED, COMPUTING]
    assert cluster.step(2) == [DROPPED, GRANTED, GRANTED]
    state = cluster.read()
    assert state.version == 1
    # The mean is of two.
    assert state.log_count[:3].tolist() == [0, 0, 2]
    assert state.log_worker[:2].tolist() == [1, 2]
    assert cluster.counts() == [[1, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]


def test_sync_goes_on_without_an_update_if_nobody_has_a_gradient():
    cluster = Cluster(Sync(), 2)
    cluster.step(0, finite=False)
    assert cluster.step(1, finite=False) == [DROPPED, DROPPED]
    assert cluster.read().version == 0
    # The same parameters, the next batches.
    cluster.step(0)
    assert cluster.step(1) == [GRANTED, GRANTED]
    assert cluster.read().version == 1
    assert cluster.counts() == [[2, 1, 1, 1], [2, 1, 1, 1]]


def test_sync_takes_a_backup_workers_gradient_instead():
    cluster = Cluster(Sync(1), 3)
    cluster.step(0, finite=False)
    assert cluster.step(1) == [ARRIVED, ACCEPTED, COMPUTING]
    assert cluster.step(2) == [DROPPED, GRANTED, GRANTED]


def test_a_worker_that_came_back_does_not_count_less_than_before():
    cluster = Cluster(Sync(), 2)
    cluster.step(0)
    # Killed while it waited; its first gradient is in the update.
    assert cluster.step(0, finite=False) == [ARRIVED, COMPUTING]
    assert cluster.step(1) == [DROPPED, GRANTED]
    assert cluster.read().log_count[2] == 2
    assert cluster.counts() == [[2, 1, 1, 1], [1, 1, 0, 0]]


@pytest.mark.parametrize("method", [Async(), SoftSync(2)])
def test_methods_without_waiting_drop_it_at_once(method):
    cluster = Cluster(method, 2)
    cluster.step(0)
    version = cluster.read().version
    assert cluster.step(1, finite=False)[1] is DROPPED
    assert cluster.read().version == version
    assert cluster.step(1)[1] is GRANTED
    assert cluster.read().version == (2 if isinstance(method, Async) else 1)
    assert cluster.counts() == [[1, 1, 0, 0], [2, 1, 1, 1]]


def test_a_bound_holds_for_who_has_nothing_that_counts():
    cluster = Cluster(BoundedStaleness(1), 2)
    assert cluster.step(0, finite=False)[0] is DROPPED
    # Two steps ahead: it waits for the other one, who does not for it.
    assert cluster.step(0, finite=False)[0] is ARRIVED
    assert cluster.step(1) == [DROPPED, GRANTED]
    assert cluster.read().version == 1
    assert cluster.counts() == [[2, 0, 2, 2], [1, 1, 0, 0]]
