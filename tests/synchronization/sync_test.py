"""Synchronous SGD with backup workers against the paper's algorithms.

Chen et al. 2016, algorithms 3 and 4 (papers.md 2a), with N + b workers:

  worker: wait for theta^(t); send (grad(theta^(t)), t)
  server: S = {}; while |S| < N: receive (G, t'); t' < t: drop, else S += G
          theta^(t+1) = theta^(t) - rate / N * sum of S

Where fewer are left, N is how many there are.
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
from tfdist.synchronization import Sync

# Workers and backup workers.
CASES = [(1, 0), (2, 0), (2, 1), (3, 1), (4, 0), (4, 3), (5, 2), (6, 1)]


class ChenOracle:
    """The server of algorithm 4, for workers that may go."""

    def __init__(self, num_workers, backup_workers):
        self._required = num_workers - backup_workers
        self._alive = set(range(num_workers))
        self._received = {}
        # Those whose second gradient for one update has to wait.
        self._repeated = set()
        self.parameters = np.zeros(SIZE)
        self.version = 0
        self.waiting = set()
        self.dropped = [0] * num_workers

    def receive(self, worker, gradient, version):
        self._alive.add(worker)
        if version < self.version:
            self._drop(worker)
        elif worker in self._received:
            self.dropped[worker] += worker in self._repeated
            self._repeated.add(worker)
        else:
            self._received[worker] = gradient
            self.waiting.add(worker)
        self._update_if_enough()

    def lose(self, worker):
        self._alive.discard(worker)
        self._update_if_enough()

    def begin_anew(self, workers):
        self._alive = set(workers)

    def _drop(self, worker):
        # One that waits, of an earlier life, is lost with it.
        self.dropped[worker] += 1 + (worker in self._repeated)
        self._repeated.discard(worker)
        self.waiting.discard(worker)

    def _update_if_enough(self):
        possible = len(self._alive | set(self._received))
        number = len(self._received)
        if number and number >= min(self._required, possible):
            mean = sum(self._received.values()) / number
            self.parameters = self.parameters - RATE * mean
            self.version += 1
            self._received = {}
            for worker in self._repeated:
                self.dropped[worker] += 1
            self._repeated = set()
            self.waiting = set()


def check_updates(num_workers, backup_workers):
    """What to watch: each update is of the right gradients."""
    seen = 0

    def check(run):
        nonlocal seen
        history = run.observer.history
        for version in range(seen, len(run.observer.updates)):
            update = run.observer.updates[version]
            workers = {gradient.worker for gradient in update.gradients}
            assert len(workers) == len(update.gradients), "one twice"
            assert len(workers) == min(
                num_workers - backup_workers, len(update.present | workers)
            )
            assert update.lateness == [0] * len(workers)
            for gradient in update.gradients:
                assert gradient.pulled == version
                np.testing.assert_array_equal(
                    gradient.parameters, history[version]
                )
        seen = len(run.observer.updates)

    return check


@laws.settings(max_examples=12, nightly=400)
@given(case=st.sampled_from(CASES), script=virtual_scripts.scripts())
def test_parameters_are_those_of_the_paper(case, script):
    run = Run(
        Sync(case[1]),
        case[0],
        oracle=ChenOracle(*case),
        watch=check_updates(*case),
    )
    run.play(script).drain()


@laws.settings(max_examples=6, nightly=200)
@given(case=st.sampled_from(CASES), script=virtual_scripts.scripts())
def test_updates_are_of_current_gradients_where_servers_lag(case, script):
    """Two servers that carry out the log at their own times."""
    run = Run(
        Sync(case[1]),
        case[0],
        num_servers=2,
        watch=check_updates(*case),
        allows=virtual_scripts.one_kill_each,
    )
    run.play(script).drain()


@laws.settings(max_examples=5, nightly=150)
@given(
    num_workers=st.sampled_from([1, 2, 4]),
    script=virtual_scripts.scripts(failures=(), max_size=40),
)
def test_without_backup_workers_it_is_one_large_batch(num_workers, script):
    run = Run(Sync(), num_workers).play(script)
    parameters = np.zeros(SIZE)
    for step, found in enumerate(run.observer.history):
        np.testing.assert_allclose(found, parameters, rtol=1e-9)
        parameters = parameters - RATE * np.mean(
            [
                virtual_server.batch_gradient(k, step, parameters)
                for k in range(num_workers)
            ],
            axis=0,
        )
    # Each worker finishes and goes on: two advances.
    assert len(run.observer.updates) >= len(script) // (2 * num_workers) - 1


@laws.settings(max_examples=5, nightly=150)
@given(
    num_workers=st.sampled_from([2, 4]),
    script=virtual_scripts.scripts(failures=(), max_size=40),
)
def test_with_all_but_one_as_backup_the_first_gradient_wins(
    num_workers, script
):
    run = Run(Sync(num_workers - 1), num_workers).play(script)
    first = {}
    for gradient in run.gradients.values():  # In the order of arrival.
        first.setdefault(gradient.pulled, gradient)
    assert [u.gradients for u in run.observer.updates] == [
        [first[version]] for version in range(len(first))
    ]


def test_the_late_are_dropped_and_learn_it():
    cluster = Cluster(Sync(1), 3)
    assert not cluster.step(0)
    assert cluster.step(2)
    assert cluster.proceed(0)
    assert cluster.step(1, pulled=0)  # At once: it is late.
    state = cluster.read()
    assert state.version == 1
    assert state.accepted.tolist() == [1, 0, 1]
    assert state.dropped.tolist() == [0, 1, 0]


def test_nobody_counts_twice_in_an_update():
    """A worker that was killed after its gradient was accepted."""
    cluster = Cluster(Sync(), 3)
    cluster.step(0)
    assert not cluster.step(0)  # Its successor has to wait, and is late then.
    assert not cluster.step(1)
    assert cluster.step(2)
    assert cluster.read().version == 1
    assert cluster.read().dropped.tolist() == [1, 0, 0]
    assert cluster.read().log_count.tolist()[3] == 3


def test_requirement_shrinks_to_who_is_left():
    cluster = Cluster(Sync(1), 4)
    cluster.step(0)
    cluster.leave(1)
    assert cluster.waiting() == {0}  # Three are left, three are wanted.
    cluster.leave(2)
    assert cluster.waiting() == {0}
    assert cluster.step(3)
    assert cluster.decided() == {0}


def test_gradient_of_one_that_has_gone_since_counts():
    cluster = Cluster(Sync(), 3)
    cluster.step(0)
    cluster.ended[0] = True
    cluster.tick()
    assert not cluster.step(1)
    assert cluster.step(2)
    state = cluster.read()
    assert state.accepted.tolist() == [1, 1, 1]
    assert state.log_count.tolist()[3] == 3


def test_last_one_left_trains_alone():
    cluster = Cluster(Sync(), 3)
    cluster.step(0)
    cluster.leave(1)
    cluster.leave(2)
    assert cluster.proceed(0)
    for _ in range(3):
        assert cluster.step(0)
    assert cluster.read().version == 4


def test_one_that_returns_late_is_waited_for_again():
    cluster = Cluster(Sync(), 2)
    cluster.leave(1)
    assert cluster.step(0)
    assert cluster.step(1, pulled=0)  # Dropped, and there again.
    assert not cluster.step(0)
    assert cluster.step(1)
    assert cluster.proceed(0)


@pytest.mark.parametrize("value", [-1, 1.0, "1", None, True])
def test_backup_workers_must_be_a_count(value):
    with pytest.raises(ValueError) as error:
        Sync(value)
    assert str(error.value) == (
        "Argument `backup_workers` of Sync must be an integer of at least 0. "
        f"Received: backup_workers={value!r}"
    )


def test_what_is_done_about_a_drop_is_one_of_two():
    with pytest.raises(ValueError, match="or 'retry'. .*on_drop='again'"):
        Sync(on_drop="again")


@pytest.mark.parametrize("value", [3, 4])
def test_somebody_must_be_no_backup_worker(value):
    assert Sync(2).resolve(3).backup_workers == 2
    with pytest.raises(ValueError) as error:
        Sync(value).resolve(3)
    assert str(error.value) == (
        "Argument `backup_workers` of Sync must be less than the number of "
        f"workers, 3. Received: backup_workers={value}"
    )


def test_repr_tells_methods_apart():
    assert repr(Sync()) == "Sync(backup_workers=0)"
    assert repr(Sync(2)) == "Sync(backup_workers=2)"
