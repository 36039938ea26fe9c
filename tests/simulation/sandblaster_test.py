"""Sandblaster in virtual time: closed formulas, laws, and what is learned."""

import math

from hypothesis import given
from hypothesis import strategies as st
import keras
import numpy as np
import pytest

from tests import laws
from tests.simulation import quadratic
import tfdist
from tfdist import simulation
from tfdist.sandblaster import line_search
from tfdist.simulation import Constant
from tfdist.simulation import Failure
from tfdist.simulation import Gamma
from tfdist.simulation import SlowWorkers
from tfdist.simulation import timing

SECOND = Constant(1.0)
DATA = quadratic.X, quadratic.Y


def played(
    portions_per_worker=8, backup_after=2.0, compute=SECOND, **arguments
):
    """A `History` of evaluations with two workers unless others are given."""
    return timing(
        simulation.Sandblaster(portions_per_worker, backup_after),
        compute=compute,
        **{"num_workers": 2, **arguments},
    )


def counted(history, evaluation):
    """The jobs that count in an evaluation, numbered from 1."""
    jobs = history.jobs[history.jobs["pulled"] == evaluation]
    return jobs[jobs["accepted"]]


@pytest.mark.parametrize(
    ("workers", "batches", "seconds"),
    [(1, 7, 7), (4, 64, 16), (4, 10, 3), (4, 13, 4), (5, 3, None)],
)
def test_equal_workers_take_turns(workers, batches, seconds):
    """`ceil(portions / workers)` times that of a portion."""
    if seconds is None:
        with pytest.raises(ValueError, match="`steps`"):
            played(num_workers=workers, steps=batches)
        return
    history = played(num_workers=workers, steps=batches, epochs=3)
    portions = min(batches, 8 * workers)
    assert seconds == math.ceil(portions / workers) * (batches / portions)
    assert history.evaluation_seconds.tolist() == [seconds] * 3
    assert history.update_seconds.tolist() == [k * seconds for k in (1, 2, 3)]


@pytest.mark.parametrize("backup_after", [2.0, math.inf])
@pytest.mark.parametrize("slow", [2, 40])
def test_a_slow_worker_takes_what_its_speed_allows(slow, backup_after):
    """Near `N / (N - 1 + 1 / K)` of the time of equal workers."""
    workers, portions = 4, 30
    history = played(
        portions,
        backup_after,
        SlowWorkers(SECOND, {3: slow}),
        num_workers=workers,
        steps=workers * portions,
    )
    ideal = workers * portions / (workers - 1 + 1 / slow)
    # The last portion is the slow worker's, or a backup task: begun when it
    # was twice as late as others, or by then at the latest.
    most = slow if backup_after == math.inf else min(slow, 2 + 0.01 + 1)
    (seconds,) = history.evaluation_seconds
    assert ideal <= seconds <= ideal + most


def test_fixed_shares_wait_for_the_slowest():
    compute = SlowWorkers(SECOND, {3: 5})
    history = played(1, math.inf, compute, num_workers=4, steps=40)
    assert history.evaluation_seconds.tolist() == [5 * 10]
    # Three workers compute 10 of 50 seconds, which are theirs to the end.
    assert history.summary()["portions"] == [1, 1, 1, 1]


def test_backup_tasks_by_hand():
    """Four portions, of which the slow worker's is taken by the other."""
    history = played(
        2, compute=SlowWorkers(SECOND, {1: 10.5}), steps=4, epochs=3
    )
    # From 0: portions 0, 2, 3 and, as it has been under way for more than 2
    # seconds, 1. From 4 all. At 10.5 the slow one is too late with what it took
    # at 0, and takes the last one of the third evaluation. After twice the
    # median, and 10 ms until the fast one looks, that is done by this one.
    first = counted(history, 1)
    assert first["batch"].tolist() == [0, 2, 3, 1]
    assert first["decided"].tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(
        history.evaluation_seconds, [4, 4, 2.5 + 2 + 0.01 + 1]
    )
    slow = history.jobs[history.jobs["worker"] == 1]
    assert slow["accepted"].tolist() == [False, False]
    assert slow["decided"][0] == 10.5
    assert slow["pulling"].tolist() == [0, 10.5]
    assert history.summary()["portions"] == [12, 0]


def test_a_free_worker_asks_again_when_a_portion_is_late():
    """The median is 1, so after 2 seconds; real workers look each 10 ms."""
    history = played(1, compute=SlowWorkers(SECOND, {1: 50}), steps=2, epochs=1)
    backup = counted(history, 1)[-1]
    assert (backup["worker"], backup["batch"]) == (0, 1)
    assert backup["pulling"] == pytest.approx(2.01)
    assert history.evaluation_seconds[0] == pytest.approx(3.01)


@pytest.mark.parametrize("backup_after", [2.0, math.inf])
def test_portions_may_take_no_time(backup_after):
    history = played(8, backup_after, Constant(0.0), steps=40, epochs=2)
    assert history.evaluation_seconds.tolist() == [0.0, 0.0]
    assert sum(history.summary()["portions"]) == 2 * 16


def test_a_worker_with_several_batches_gives_up_what_nobody_wants():
    """It asks between two batches, after a quarter of a second."""
    history = played(
        1, compute=SlowWorkers(Constant(0.1), {1: 100}), steps=20, epochs=5
    )
    slow = history.jobs[history.jobs["worker"] == 1]
    assert slow["decided"][0] == 10.0  # Of the first batch alone.
    assert not slow["accepted"][0]


@pytest.mark.parametrize(
    ("backup_after", "begins"),
    [
        # When the first worker has no other: it has been under way for 3.
        (2.0, 4.0),
        # When its worker has been silent for 6 seconds.
        (math.inf, 1.5 + 6.0),
    ],
)
def test_others_compute_what_the_dead_leave(backup_after, begins):
    history = played(
        3,
        backup_after,
        steps=6,
        failures=[Failure(worker=1, at=1.5)],
        worker_timeout=6.0,
    )
    jobs = counted(history, 1)
    assert sorted(jobs["batch"]) == list(range(6))
    again = jobs[jobs["batch"] == 3]
    assert again["worker"] == 0
    assert again["pulling"] == begins
    assert history.evaluation_seconds.tolist() == [begins + 1]


def test_messages_cost_round_trips():
    """One worker, two portions: what it sends, and what it waits for."""
    trip, command = 0.002, 0.01
    history = played(
        2,
        num_workers=1,
        steps=2,
        network=simulation.Network(
            latency_seconds=trip / 2, server_seconds=command
        ),
    )
    trips = [
        3,  # What was left is freed; a record is read and replaced.
        2,  # The same to take the first portion.
        1,  # The parameters.
        1,  # Is the point still there?
        2 * 1,  # To deposit a gradient, twice.
        2 * 2,  # To complete it and take the next.
        2 * 1,  # Which ones count?
        2 * 1,  # To add it.
        1,  # All are divided by their number.
    ]
    seconds = 2 * 1.0 + 3 * command + trip * sum(trips)
    assert history.evaluation_seconds[0] == pytest.approx(seconds)
    # The direction, the slope and the pair; the end of an iteration.
    seconds += 3 * (trip + command) + 5 * trip
    assert history.seconds == pytest.approx(seconds)


@laws.settings(20)
@given(
    workers=st.integers(1, 5),
    batches=st.integers(5, 40),
    portions=st.integers(1, 6),
    backup_after=st.floats(1.01, 5) | st.just(math.inf),
    factors=st.lists(st.floats(0.1, 30), min_size=5, max_size=5),
    deaths=st.lists(
        st.tuples(st.floats(0, 60), st.floats(0.1, 60) | st.none()),
        max_size=4,
    ),
    latency=st.sampled_from([0.0, 0.003]),
    seed=st.integers(0, 9),
)
def test_each_portion_counts_once_in_each_evaluation(
    workers, batches, portions, backup_after, factors, deaths, latency, seed
):
    failures = [
        Failure(worker, at, None if after is None else at + after)
        for worker, (at, after) in enumerate(deaths[: workers - 1], 1)
    ]
    history = played(
        portions,
        backup_after,
        SlowWorkers(Gamma(0.3, 2.0), dict(enumerate(factors))),
        num_workers=workers,
        steps=batches,
        epochs=3,
        failures=failures,
        network=simulation.Network(latency_seconds=latency),
        worker_timeout=3.0,
        seed=seed,
    )
    for evaluation in (1, 2, 3):
        jobs = counted(history, evaluation)
        assert jobs["steps"].sum() == batches
        assert len(set(jobs["batch"])) == min(batches, portions * workers)
    # A worker does one thing at a time.
    for worker in range(workers):
        jobs = history.jobs[history.jobs["worker"] == worker]
        ended = np.nan_to_num(jobs["arrived"], nan=-1.0)
        assert np.all(ended[:-1] <= jobs["pulling"][1:])


def fitted(iterations, workers):
    """Losses of the real strategy, in one process, with as many portions."""
    strategy = tfdist.SandblasterStrategy(portions_per_worker=2 * workers)
    with strategy.scope():
        model = quadratic.model_fn(tfdist.sandblaster.LBFGS)()
    model.fit(
        *DATA,
        batch_size=quadratic.BATCH,
        epochs=iterations,
        shuffle=False,
        verbose=0,
    )
    return [one["value"] for one in strategy.iterations], model.get_weights()


def minimized(workers, **arguments):
    return simulation.simulate(
        quadratic.model_fn(),
        DATA,
        f"sandblaster:portions_per_worker={8 // workers}",
        num_workers=workers,
        batch_size=quadratic.BATCH,
        **{"epochs": 4, "evaluate_every": 0.5, **arguments},
    )


@pytest.mark.nightly
def test_losses_are_those_of_the_real_strategy():
    values, weights = fitted(4, workers=4)
    history = minimized(workers=4)
    rows = history.evaluations[1:]
    assert [row["updates"] for row in rows] == list(range(1, len(values) + 1))
    np.testing.assert_allclose(
        [row["train_loss"] for row in rows], values, rtol=1e-6
    )
    np.testing.assert_allclose(
        history.model.get_weights()[0], weights[0], rtol=1e-5
    )
    # Each iteration has seen all data as often as the line search has asked.
    assert rows[-1]["epoch"] == len(history.evaluation_seconds)


@pytest.mark.nightly
def test_workers_change_times_alone():
    slow = {"compute": SlowWorkers(Gamma(0.1), {1: 7})}
    one, other = minimized(workers=1), minimized(workers=4, **slow)
    for row, as_row in zip(one.evaluations, other.evaluations, strict=True):
        assert row["train_loss"] == as_row["train_loss"]
        assert row["epoch"] == as_row["epoch"]
    assert other.seconds < one.seconds


def test_the_optimizer_of_the_model_counts():
    search = line_search.Armijo(max_evaluations=3)

    def optimizer():
        return tfdist.sandblaster.LBFGS(line_search=search)

    history = simulation.simulate(
        quadratic.model_fn(optimizer),
        DATA,
        simulation.Sandblaster(),
        num_workers=2,
        batch_size=quadratic.BATCH,
        validation_data=DATA,
        max_seconds=1e-3,
        epochs=9,
    )
    assert history.model.optimizer.line_search == search
    # One iteration has begun by then.
    assert history.updates == 1
    assert history.evaluations[-1]["loss"] == pytest.approx(
        history.evaluations[-1]["train_loss"], rel=1e-5
    )


def test_a_model_that_changes_its_state_is_refused():
    def build():
        model = keras.Sequential(
            [
                keras.Input((quadratic.SIZE,)),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
        return model

    with pytest.raises(ValueError, match="must not change its state"):
        simulation.simulate(
            build, DATA, "sandblaster", num_workers=2, batch_size=8
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"failures": [Failure(0, 1.0)]}, "`failures` must not name worker 0"),
        ({"work": "queue"}, "`work` must be 'shares' with sandblaster"),
        ({"dynamic_shares": True}, "`dynamic_shares` must be False"),
    ],
)
def test_what_is_not_simulated_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        timing("sandblaster", num_workers=2, steps=8, **arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sandblaster:memory=3", "the optimizer that the model is compiled"),
        ("sandblaster:backup_after=1", "`backup_after` must be a number above"),
    ],
)
def test_settings_that_there_are_not_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        timing(text, num_workers=2, steps=8)


def test_what_needs_a_learning_rate_refuses_it():
    with pytest.raises(ValueError, match="no learning rate"):
        simulation.compare(
            lambda rate, momentum: quadratic.model_fn(),
            DATA,
            ["sandblaster"],
            [2],
            batch_size=quadratic.BATCH,
        )
