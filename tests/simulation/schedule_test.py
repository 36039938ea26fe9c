"""The course of virtual clusters: times and staleness, by hand and law."""

import numpy as np
import pytest

from tfdist import simulation
from tfdist import synchronization
from tfdist.simulation import Constant
from tfdist.simulation import Failure
from tfdist.simulation import Gamma
from tfdist.simulation import Method
from tfdist.simulation import Network
from tfdist.simulation import SlowWorkers
from tfdist.simulation import Sometimes
from tfdist.simulation import timing


def of(history, worker):
    return history.jobs[history.jobs["worker"] == worker]


@pytest.mark.parametrize("workers", [4, 16])
def test_homogeneous_asynchronous_workers_are_stale_by_n_minus_1(workers):
    """Gupta et al. 2015: about the number of learners."""
    history = timing(
        "async", num_workers=workers, steps=20 * workers, compute=Gamma(1.0)
    )
    order = np.argsort(history.jobs["arrived"], kind="stable")
    # Without the beginning, in which there is nothing to be late for.
    staleness = history.jobs["staleness"][order][2 * workers :]
    # Of N gradients in the time of a step, all but one are others'; a worker
    # that ends before the others leaves them fresher.
    assert staleness.mean() == pytest.approx(workers - 1, rel=0.03)


@pytest.mark.nightly
@pytest.mark.parametrize("n", [4, 1, 15, 30])
def test_staleness_of_n_softsync_is_about_n_and_hardly_beyond_2n(n):
    """Zhang et al. 2016, section 5.1, with 30 learners."""
    workers = 30
    history = timing(
        Method(synchronization.SoftSync(n=n)),
        num_workers=workers,
        steps=50 * workers,
        compute=Gamma(1.0),
    )
    order = np.argsort(history.jobs["arrived"], kind="stable")
    staleness = history.jobs["staleness"][order][2 * workers :]
    # Its window of floor(30 / n) gradients is passed by others (29 of 30).
    wanted = (workers - 1) / (workers // n)
    assert staleness.mean() == pytest.approx(wanted, rel=0.05)
    # The paper: with probability of less than 1e-4.
    assert not np.any(staleness > 2 * n)


def test_asynchronous_workers_take_their_own_time():
    compute = SlowWorkers(Constant(1.0), {1: 3})
    history = timing("async", num_workers=2, steps=12, compute=compute)
    assert of(history, 0)["decided"].tolist() == [1, 2, 3, 4, 5, 6]
    assert of(history, 1)["decided"].tolist() == [3, 6, 9, 12, 15, 18]
    # Of what happens at one moment, that comes first which began first: so
    # the fast one's gradients of 1 and 2, of 3 to 5, and of 6.
    assert of(history, 1)["staleness"].tolist() == [2, 3, 1, 0, 0, 0]
    assert history.utilization == 1.0
    assert history.seconds == 18


def test_shares_may_be_taken_as_workers_come():
    compute = SlowWorkers(Constant(1.0), {1: 3})
    history = timing(
        "async", num_workers=2, steps=12, compute=compute, dynamic_shares=True
    )
    assert sorted(history.jobs["batch"]) == list(range(12))
    assert len(of(history, 0)) == 9
    assert history.seconds == 9
    with pytest.raises(ValueError, match="`dynamic_shares` must be"):
        timing(
            "async", num_workers=2, steps=2, dynamic_shares=True, work="queue"
        )


@pytest.mark.nightly
def test_synchronous_workers_wait_for_the_slowest():
    compute = SlowWorkers(Constant(1.0), {2: 2.5})
    history = timing("sync", num_workers=3, steps=12, compute=compute)
    np.testing.assert_allclose(history.update_seconds, [2.5, 5, 7.5, 10])
    assert not history.staleness.any()
    np.testing.assert_allclose(of(history, 0)["arrived"], [1, 3.5, 6, 8.5])
    # Two workers compute 1 of 2.5 seconds, one all.
    assert history.utilization == pytest.approx((1 + 1 + 2.5) / 7.5)
    assert history.waited.sum() == pytest.approx(2 * 4 * 1.5)


def test_backup_workers_leave_the_slowest_behind():
    compute = SlowWorkers(Constant(1.0), {2: 1.75})
    history = timing(
        "backup_workers:backup_workers=1",
        num_workers=3,
        steps=12,
        compute=compute,
    )
    slow = of(history, 2)
    assert not slow["accepted"][0]
    assert slow["decided"][0] == pytest.approx(1.75)
    np.testing.assert_allclose(history.update_seconds[:3], [1, 2, 3])


def test_retry_computes_the_same_batch_again():
    compute = SlowWorkers(Constant(1.0), {2: 1.75})
    history = timing(
        "backup_workers:backup_workers=1:on_drop=retry",
        num_workers=3,
        steps=12,
        compute=compute,
    )
    accepted = history.jobs[history.jobs["accepted"]]
    assert sorted(accepted["batch"]) == list(range(12))
    slow = of(history, 2)
    assert slow["batch"][1] == slow["batch"][0]


def test_bounded_workers_run_ahead_so_far_and_no_farther():
    compute = SlowWorkers(Constant(1.0), {1: 10})
    history = timing(
        "bounded_staleness:max_staleness=2",
        num_workers=2,
        steps=20,
        compute=compute,
    )
    np.testing.assert_allclose(
        of(history, 0)["decided"][:5], [1, 2, 10, 20, 30]
    )


def test_push_and_pull_take_their_time():
    # A gigabit per second carries 125 MB; the worker's link is the slower.
    network = Network(latency_seconds=0.1, bandwidth_gbps=1)
    history = timing(
        "async",
        num_workers=1,
        steps=2,
        push_bytes=25_000_000,
        pull_bytes=50_000_000,
        compute=Constant(1.0),
        network=network,
    )
    pull, push = 0.1 + 0.4, 0.1 + 0.2
    jobs = history.jobs
    np.testing.assert_allclose(jobs["began"], [pull, 1 + 2 * pull + push])
    np.testing.assert_allclose(jobs["arrived"] - jobs["computed"], [push] * 2)
    assert history.total_bytes == 2 * 75_000_000
    assert history.utilization == pytest.approx(1 / (1 + pull + push))


def test_nobody_waits_for_the_dead_longer_than_the_timeout():
    history = timing(
        "sync",
        num_workers=3,
        steps=60,
        compute=Constant(1.0),
        failures=[Failure(1, at=4.5)],
        worker_timeout=10.0,
    )
    # Silent since 4.5; the others' heartbeats come once a second.
    gaps = np.diff(history.update_seconds)
    assert 9.5 <= gaps.max() <= 11.5
    assert np.sum(gaps > 1.5) == 1
    # Its four updates, and the others' shares.
    assert history.updates == 20
    assert np.count_nonzero(of(history, 1)["accepted"]) == 4
    assert len(of(history, 0)) == len(of(history, 2)) == 20


def test_who_comes_back_goes_on_with_what_is_left():
    history = timing(
        "async",
        num_workers=3,
        steps=60,
        compute=Constant(1.0),
        failures=[Failure(1, at=4.5, until=20.25)],
    )
    mine = of(history, 1)
    lost = ~mine["accepted"]
    assert np.isnan(mine["arrived"][lost]).all()
    assert lost.sum() == 1
    assert sorted(mine["batch"][~lost]) == list(range(1, 60, 3))
    assert mine["pulling"][lost.argmax() + 1] == 20.25


def test_who_joins_late_pulls_what_there_is():
    history = timing(
        "async",
        num_workers=2,
        steps=20,
        compute=Constant(1.0),
        failures=[Failure(1, at=0, until=5.5)],
    )
    first = of(history, 1)[0]
    assert (first["pulling"], first["pulled"]) == (5.5, 5)


def test_a_failure_that_kills_the_waiting_is_survived():
    compute = SlowWorkers(Constant(1.0), {2: 4})
    history = timing(
        "sync",
        num_workers=3,
        steps=30,
        compute=compute,
        # Worker 0 waits from 1 to 4 for worker 2.
        failures=[Failure(0, at=2.0, until=3.0)],
    )
    # Its gradient had arrived, and counts.
    assert of(history, 0)["accepted"][0]
    assert history.updates >= 10


@pytest.mark.nightly
def test_who_has_not_come_yet_is_waited_for_longer():
    settings = {
        "num_workers": 2,
        "steps": 20,
        "compute": Constant(1.0),
        "failures": [Failure(1, at=0, until=60.0)],
    }
    assert timing("sync", **settings).update_seconds[0] == 61
    patient = timing("sync", start_timeout=30.0, **settings)
    # From the first gradient on, at 1 s.
    assert patient.update_seconds[0] == pytest.approx(31, abs=0.01)


def test_nobody_waits_for_ever_for_one_that_is_only_slow():
    compute = SlowWorkers(Constant(1.0), {1: 1000})
    history = timing("sync", num_workers=2, steps=4, compute=compute)
    # It has never arrived (300 s); in later steps it is idle (600 s).
    np.testing.assert_allclose(history.update_seconds[0], 301, atol=0.01)


@pytest.mark.nightly
def test_waiting_for_the_slow_while_another_is_dead_is_no_deadlock():
    compute = SlowWorkers(Constant(1.0), {0: 200})
    history = timing(
        "sync",
        num_workers=4,
        steps=4 * 71,
        compute=compute,
        failures=[Failure(3, 10.0), Failure(0, 14100.0)],
    )
    # 70 updates with the slow one, and one that waited for it in vain.
    assert history.updates == 71
    assert history.update_seconds[-1] < 14112


@pytest.mark.parametrize("failure", [Failure(1, 1000, 2000), Failure(1, 500)])
def test_what_happens_after_the_end_takes_no_time(failure):
    settings = {"num_workers": 2, "steps": 20, "compute": Constant(0.1)}
    with_failure = timing("async", failures=[failure], **settings)
    assert with_failure.seconds == timing("async", **settings).seconds
    assert with_failure.seconds == pytest.approx(1.0)


def test_a_killed_workers_long_step_is_not_waited_for():
    compute = SlowWorkers(Constant(0.1), {1: 10_000})
    history = timing(
        "async",
        num_workers=2,
        steps=20,
        compute=compute,
        failures=[Failure(1, 0.5)],
    )
    assert history.seconds == pytest.approx(1.0)


class Hoarding(synchronization.Synchronization):
    """Lets everybody wait for ever."""

    waits = True

    def decide(self, state):
        return state


def test_a_method_that_never_decides_is_an_error_not_a_hang():
    with pytest.raises(RuntimeError, match=r"workers \[0, 1\] wait"):
        timing(Method(Hoarding()), num_workers=2, steps=4)
    with pytest.raises(RuntimeError, match="wait"):
        timing(
            Method(Hoarding()),
            num_workers=2,
            steps=4,
            failures=[Failure(1, at=0.01)],
        )


@pytest.mark.parametrize("method", ["async", "downpour:n_fetch=2:n_push=3"])
def test_no_two_steps_of_a_worker_have_one_number(method):
    """Not even where it died before it computed: in mid-pull, in mid-fetch."""
    history = timing(
        method,
        num_workers=2,
        steps=40,
        compute=Constant(1.0),
        network=Network(latency_seconds=1.0),
        failures=[Failure(0, at=0.5, until=2.0), Failure(0, at=5.5, until=9.0)],
    )
    mine = of(history, 0)
    assert np.isnan(mine["began"][0])
    ends = mine["step"] + mine["steps"]
    assert np.all(mine["step"][1:] >= ends[:-1])


def test_the_same_seed_is_the_same_course_and_another_is_not():
    def course(seed):
        return timing(
            "softsync:n=2",
            num_workers=5,
            steps=50,
            compute=Gamma(1.0) + Sometimes(simulation.Pareto(1.0), 0.1),
            seed=seed,
        ).jobs

    np.testing.assert_array_equal(course(3), course(3))
    assert np.any(course(3)["arrived"] != course(4)["arrived"])


class Backwards(simulation.ComputeTime):
    """Draws what cannot be."""

    def draw(self, worker, step, stream):
        return -1.0

    def mean(self, worker):
        return -1.0


@pytest.mark.parametrize("failures", [Failure(1, 1.0), [(1, 2.0)], 3])
def test_other_failures_are_refused(failures):
    with pytest.raises(TypeError, match="failures"):
        timing("async", num_workers=2, steps=4, failures=failures)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": 0}, "num_workers"),
        ({"steps": 1}, "steps"),
        ({"num_servers": 0}, "num_servers"),
        ({"strategy": "backup_workers:backup_workers=2"}, "backup_workers"),
        ({"strategy": "async:correction=magic"}, "magic"),
        (
            {"failures": [Failure(2, 1.0)]},
            "`failures` must name workers from 0 to 1",
        ),
        (
            {"failures": [Failure(1, 1.0, 5.0), Failure(1, 2.0, 2.5)]},
            "back before it dies again",
        ),
        ({"batch_size": 0}, "batch_size"),
        (
            {"push_bytes": [1, 2]},
            "`push_bytes` must be a number or a list",
        ),
        ({"worker_timeout": 2.0}, "worker_timeout"),
        ({"start_timeout": None}, "start_timeout"),
        ({"compute": Backwards()}, "`compute` must draw"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, message):
    arguments = {
        "strategy": "async",
        "num_workers": 2,
        "steps": 4,
        **arguments,
    }
    with pytest.raises(ValueError, match=message):
        timing(arguments.pop("strategy"), **arguments)


def test_failures_that_end_before_they_begin_are_refused():
    with pytest.raises(ValueError, match="until"):
        Failure(0, at=2.0, until=2.0)
    with pytest.raises(ValueError, match="`at` of Failure must"):
        Failure(0, at=-1.0)
