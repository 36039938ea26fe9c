"""Stale synchronous parallel against the paper's definition.

Ho et al. 2013 (papers.md 4a). A worker's clock c counts its finished steps;
the gradient of its first has timestamp 0. With bound s:

  bounded gap: a worker whose clock is more than s ahead of another's blocks.
  read guarantee: at clock c it sees all gradients of timestamps up to
    c - s - 1, and of others none after c + s - 1.
  read-my-writes: it sees all of its own.
  s = 0 is bulk synchronous: all compute step c from the same parameters.

Gradients are applied one by one, when their workers may go on.
"""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from tests import laws
from tests.synchronization import virtual_scripts
from tests.synchronization import virtual_server
from tests.synchronization.virtual_cluster import Cluster
from tests.synchronization.virtual_run import Run
from tests.synchronization.virtual_server import RATE
from tests.synchronization.virtual_server import SIZE
from tfdist.synchronization import BoundedStaleness

# Workers and bound.
CASES = [(1, 0), (2, 0), (2, 3), (3, 1), (4, 0), (4, 2), (5, 1), (6, 2)]


class HoOracle:
    """A table of clocks, and the gradients of those who are blocked."""

    def __init__(self, num_workers, bound):
        self._bound = bound
        self._alive = dict.fromkeys(range(num_workers), True)
        self._clocks = [0] * num_workers
        self._blocked = {}  # In the order in which they came.
        self.parameters = np.zeros(SIZE)
        self.version = 0
        self.dropped = [0] * num_workers

    @property
    def waiting(self):
        return set(self._blocked)

    def receive(self, worker, gradient, version):
        del version
        if worker in self._blocked:
            # A new life of one that was killed while it was blocked: the
            # step is not finished before its gradient is in the table.
            del self._blocked[worker]
            self.dropped[worker] += 1
        else:
            self._clocks[worker] += 1
        if not self._alive[worker]:
            others = [c for k, c in enumerate(self._clocks) if self._alive[k]]
            if others:  # Nobody has to wait until it has caught up.
                self._clocks[worker] = max(self._clocks[worker], min(others))
            self._alive[worker] = True
        self._blocked[worker] = gradient
        self._release()

    def lose(self, worker):
        self._alive[worker] = False
        self._release()

    def begin_anew(self, workers):
        self._clocks = [0] * len(self._clocks)
        self._alive = {k: k in workers for k in self._alive}

    def _release(self):
        alive = [c for k, c in enumerate(self._clocks) if self._alive[k]]
        for worker, gradient in list(self._blocked.items()):
            if any(self._clocks[worker] - c > self._bound for c in alive):
                continue
            del self._blocked[worker]
            self.parameters = self.parameters - RATE * gradient
            self.version += 1


def check_gap(bound):
    """What to watch: nobody has gone on more than `bound` ahead."""

    def check(run):
        waiting = run.cluster.waiting()
        clocks = [run.clocks[k] - (k in waiting) for k in run.present]
        assert not clocks or max(clocks) - min(clocks) <= bound
        state = run.cluster.read()
        for worker in run.present:
            assert state.clock[worker] == run.clocks[worker]

    return check


def check_read(bound):
    """What to check when a worker has read: what it must see, and may.

    The first gradient of a worker that returns enters at the clock of the
    slowest, who may have read already; nobody has waited for it.
    """

    def check(run, worker, servers):
        if worker not in run.present:
            return
        clock = run.clocks[worker]
        everywhere = set.intersection(*(server.taken for server in servers))
        anywhere = set.union(*(server.taken for server in servers))
        for key, gradient in run.gradients.items():
            if key in run.earlier:
                continue
            old = gradient.clock <= clock - bound - 1
            if gradient.worker == worker or (old and not gradient.returned):
                assert key in everywhere
            elif gradient.worker in run.present:
                assert gradient.clock <= clock + bound - 1 or (
                    key not in anywhere
                )

    return check


@pytest.mark.nightly
@laws.settings(max_examples=12, nightly=400)
@given(case=st.sampled_from(CASES), script=virtual_scripts.scripts())
def test_parameters_and_gap_are_those_of_the_paper(case, script):
    run = Run(
        BoundedStaleness(case[1]),
        case[0],
        oracle=HoOracle(*case),
        watch=check_gap(case[1]),
        on_read=check_read(case[1]),
    )
    run.play(script).drain()


@laws.settings(max_examples=6, nightly=200)
@given(case=st.sampled_from(CASES), script=virtual_scripts.scripts())
def test_reads_are_guaranteed_where_servers_lag(case, script):
    """Two servers that carry out the log at their own times."""
    run = Run(
        BoundedStaleness(case[1]),
        case[0],
        num_servers=2,
        watch=check_gap(case[1]),
        on_read=check_read(case[1]),
        allows=virtual_scripts.one_kill_each,
    )
    run.play(script).drain()


@laws.settings(max_examples=5, nightly=150)
@given(
    num_workers=st.sampled_from([1, 2, 4]),
    script=virtual_scripts.scripts(failures=(), max_size=40),
)
def test_without_staleness_it_is_bulk_synchronous(num_workers, script):
    run = Run(BoundedStaleness(0), num_workers).play(script)
    rounds = [np.zeros(SIZE)]
    for step in range(len(run.observer.updates) // num_workers + 1):
        gradients = [
            virtual_server.batch_gradient(k, step, rounds[-1])
            for k in range(num_workers)
        ]
        rounds.append(rounds[-1] - RATE * sum(gradients))
    for version in range(0, len(run.observer.history), num_workers):
        np.testing.assert_allclose(
            run.observer.history[version],
            rounds[version // num_workers],
            rtol=1e-9,
        )
    for gradient in run.gradients.values():
        np.testing.assert_allclose(
            gradient.parameters, rounds[gradient.clock], rtol=1e-9
        )
    # Each worker finishes and goes on: two advances.
    assert len(run.observer.updates) >= len(script) // 2 - num_workers


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_fast_worker_may_take_so_many_steps_more(bound):
    cluster = Cluster(BoundedStaleness(bound), 2)
    for _ in range(bound):
        assert cluster.step(0)
    assert not cluster.step(0)
    assert cluster.step(1)
    assert cluster.proceed(0)


def test_updates_are_in_the_order_of_arrival():
    cluster = Cluster(BoundedStaleness(0), 4)
    for worker, key in ((2, 5), (0, 6), (3, 7), (1, 8)):
        cluster.arrive(worker, key, 0)
    state = cluster.read()
    assert state.log_key[:4].tolist() == [5, 6, 7, 8]
    assert state.log_staleness[:4].tolist() == [0, 1, 2, 3]
    assert state.log_first[:4].tolist() == [1] * 4
    assert state.log_count[:4].tolist() == [1] * 4


def test_slowest_is_not_waited_for_once_it_has_gone():
    cluster = Cluster(BoundedStaleness(1), 3)
    cluster.step(0)
    cluster.step(1)
    cluster.step(0)
    cluster.step(1)
    assert cluster.waiting() == {0, 1}
    cluster.leave(2)
    assert cluster.decided() == {0, 1}


def test_returning_worker_holds_nobody_up():
    cluster = Cluster(BoundedStaleness(0), 3)
    cluster.leave(2)
    for _ in range(5):
        cluster.step(0)
        cluster.step(1)
        cluster.proceed(0)
    assert cluster.step(2)  # Enters at 5, not at 1.
    assert cluster.read().clock.tolist() == [5, 5, 5]
    assert not cluster.step(0)
    assert not cluster.step(2)
    assert cluster.step(1)
    assert cluster.decided() == {0, 2}


@pytest.mark.parametrize("value", [-1, 0.0, "0", None, False])
def test_max_staleness_must_be_a_count(value):
    with pytest.raises(ValueError) as error:
        BoundedStaleness(value)
    assert str(error.value) == (
        "Argument `max_staleness` of BoundedStaleness must be an integer of at "
        f"least 0. Received: max_staleness={value!r}"
    )


def test_repr_tells_methods_apart():
    method = BoundedStaleness(2).resolve(1)
    assert repr(method) == "BoundedStaleness(max_staleness=2)"
