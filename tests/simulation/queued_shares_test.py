"""Epochs of `work="queue"` in virtual time: by hand, by law, with deaths."""

import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from tests import laws
from tests.simulation import quadratic
from tfdist import simulation
from tfdist.data_shares import portion_queue
from tfdist.simulation import Constant
from tfdist.simulation import Failure
from tfdist.simulation import SlowWorkers
from tfdist.simulation import timing

SECOND = Constant(1.0)


def queue(workers, steps, compute=SECOND, **arguments):
    return timing(
        "async",
        num_workers=workers,
        steps=steps,
        compute=compute,
        work="queue",
        **arguments,
    )


def batches_of(history):
    """Batches whose gradients count, in order."""
    return sorted(history.jobs["batch"][history.jobs["accepted"]].tolist())


@pytest.mark.parametrize("workers", [1, 4])
def test_equal_workers_share_an_epoch_evenly(workers):
    history = queue(workers, 10 * workers, epochs=2)
    assert history.seconds == 2 * 10
    assert batches_of(history) == list(range(2 * 10 * workers))


def test_a_slow_worker_takes_what_its_speed_allows():
    """Of N workers, one K times slower: N / (N - 1 + 1 / K) of the time."""
    workers, slow, batches = 4, 5, 400
    compute = SlowWorkers(SECOND, {3: slow})
    history = queue(workers, batches, compute)
    ideal = batches / (workers - 1 + 1 / slow)
    # The last portions have one batch: nobody waits longer for one.
    assert ideal <= history.seconds <= ideal + slow
    fixed = timing("async", num_workers=workers, steps=batches, compute=compute)
    assert fixed.seconds == slow * batches / workers


def test_portions_are_those_of_the_queue_of_real_workers():
    history = queue(2, 24, SlowWorkers(SECOND, {1: 3}))
    ends = portion_queue.cut(24, 2, 8)
    firsts = [0, *ends[:-1]]
    owner = {}
    for job in history.jobs:
        portion = np.searchsorted(ends, job["batch"], side="right")
        assert owner.setdefault(int(portion), job["worker"]) == job["worker"]
    begun = {
        int(job["batch"]): job["pulling"]
        for job in history.jobs
        if job["batch"] in firsts
    }
    # Portions are given out in their order.
    assert [begun[f] for f in firsts] == sorted(begun[f] for f in firsts)


def test_an_epoch_begins_when_the_one_before_is_done():
    history = queue(3, 12, SlowWorkers(SECOND, {2: 10}), epochs=2)
    jobs = history.jobs
    ended = jobs["decided"][jobs["batch"] < 12].max()
    assert jobs["pulling"][jobs["batch"] >= 12].min() == ended


@pytest.mark.parametrize("until", [None, 6.5, 60.0])
def test_a_portion_of_a_dead_worker_goes_on_where_servers_are(until):
    history = queue(
        2,
        32,
        failures=[Failure(worker=1, at=1.5, until=until)],
        worker_timeout=4.0,
    )
    # Each batch is applied once; the one under way is computed again.
    assert batches_of(history) == list(range(32))
    died = history.jobs[~history.jobs["accepted"]]
    assert len(died) == 1
    again = history.jobs[history.jobs["batch"] == died["batch"][0]][-1]
    assert again["worker"] == (1 if until == 6.5 else 0)
    # Others look for portions of the dead when there is none else.
    if until is None:
        assert history.seconds == 31


def test_a_portion_whose_worker_dies_before_it_says_so_is_done():
    """All of its batches have arrived; only the answer has not."""
    history = queue(
        2,
        8,
        portions_per_worker=1,
        network=simulation.Network(latency_seconds=0.25),
        failures=[Failure(worker=1, at=4.0)],
        worker_timeout=2.5,
    )
    assert batches_of(history) == list(range(8))


@pytest.mark.nightly
@laws.settings(20)
@given(
    workers=st.integers(1, 5),
    steps=st.integers(5, 60),
    portions=st.integers(1, 9),
    epochs=st.integers(1, 3),
    factors=st.lists(st.floats(0.1, 9), min_size=5, max_size=5),
    deaths=st.lists(
        st.tuples(st.floats(0, 30), st.floats(0.1, 40) | st.none()),
        max_size=4,
    ),
)
def test_every_batch_counts_once(
    workers, steps, portions, epochs, factors, deaths
):
    """Whoever is slow or dies, if the first worker lives."""
    failures = [
        Failure(worker, at, None if after is None else at + after)
        for worker, (at, after) in enumerate(deaths[: workers - 1], 1)
    ]
    history = queue(
        workers,
        steps,
        SlowWorkers(SECOND, dict(enumerate(factors))),
        portions_per_worker=portions,
        epochs=epochs,
        failures=failures,
        worker_timeout=3.0,
    )
    assert batches_of(history) == list(range(epochs * steps))


@pytest.mark.nightly
def test_it_trains_as_shares_do_where_there_is_one_worker():
    histories = [
        simulation.simulate(
            quadratic.model_fn(),
            (quadratic.X, quadratic.Y),
            "async",
            num_workers=1,
            batch_size=quadratic.BATCH,
            epochs=2,
            work=work,
        )
        for work in ("shares", "queue")
    ]
    one, other = (history.evaluations for history in histories)
    assert one == other
    assert math.isfinite(one[-1]["train_loss"])


@pytest.mark.parametrize(
    ("strategy", "arguments", "name"),
    [
        ("sync", {}, "`work` must be"),
        ("parameter_averaging:synchronization=async", {}, "`work` must be"),
        ("async", {"portions_per_worker": 0}, "`portions_per_worker` must"),
        ("gossip", {}, "`work` must be 'shares'"),
    ],
)
def test_what_has_no_portions_is_refused(strategy, arguments, name):
    with pytest.raises(ValueError, match=name):
        simulation.simulate(
            quadratic.model_fn(),
            (quadratic.X, quadratic.Y),
            strategy,
            num_workers=2,
            batch_size=quadratic.BATCH,
            work="queue",
            **arguments,
        )
