"""Simulated asynchronous local steps against NumPy and real workers."""

import heapq
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.simulation import local_oracles as oracles
from tests.simulation import quadratic
from tests.simulation.virtual_local_steps_test import check
from tests.simulation.virtual_local_steps_test import simulate
import tfdist
from tfdist import averaging
from tfdist import correction
from tfdist import simulation
from tfdist import synchronization
from tfdist.simulation import Method

WORKERS, EPOCHS, BATCH = 3, 4, 4
SGD = keras.optimizers.SGD


def rate_of(counted):
    return quadratic.RATE / (1 + 0.2 * counted)


def decaying(**settings):
    return SGD(
        keras.optimizers.schedules.InverseTimeDecay(quadratic.RATE, 1, 0.2),
        **settings,
    )


def compare(history, exchange, **inner):
    """Checks a history against the same order of events in NumPy."""
    wanted, staleness, order = oracles.by_arrival(
        history,
        EPOCHS,
        BATCH,
        lambda: oracles.Momentum(rate_of, **inner),
        exchange,
    )
    np.testing.assert_array_equal(history.jobs["staleness"][order], staleness)
    assert max(staleness) > 1, "nothing was late"
    check(history, wanted)


@pytest.mark.nightly
def test_elastic_averaging_moves_both_sides_by_one_difference():
    history = simulate(
        "easgd:period=2:alpha=0.3",
        WORKERS,
        lambda: decaying(momentum=0.6, nesterov=True),
        # It begins with the centre as it is then, and as many steps counted.
        failures=[simulation.Failure(worker=2, at=0.0, until=6.1)],
    )
    assert history.jobs["pulled"][history.jobs["worker"] == 2][0] > 1

    def exchange(centre, worker):
        difference = 0.3 * (worker.point - centre)
        worker.give(worker.own - difference)
        return centre + difference

    compare(history, exchange, momentum=0.6, nesterov=True)


@pytest.mark.nightly
def test_delayed_nesterov_takes_its_turn_with_the_last_of_all_workers():
    c = 0.2
    history = simulate(
        f"async_local_sgd:period=3:c={c}:dynamic=false:outer_momentum=0.5",
        WORKERS,
        lambda: decaying(momentum=0.6),
    )
    outer = oracles.DelayedNesterov(WORKERS, 0.7, 0.5, c)

    def exchange(theta, worker):
        theta = outer(theta, worker.anchor - worker.own)
        worker.give(theta)
        return theta

    compare(history, exchange, momentum=0.6)


def test_corrections_see_the_change_and_what_it_was_made_from():
    history = simulate(
        Method(
            correction=correction.DelayCompensation(0.7, None),
            local_steps=averaging.ParameterAveraging(2, SGD(0.4)),
        ),
        WORKERS,
        decaying,
    )

    def exchange(theta, worker):
        change = worker.anchor - worker.own
        late = theta - worker.anchor
        theta = theta - 0.4 * (change + 0.7 * change * change * late)
        worker.give(theta)
        return theta

    compare(history, exchange)


@pytest.mark.nightly
def test_softsync_weighs_by_examples_whoever_they_are_of():
    history = simulate(
        Method(
            synchronization.SoftSync(2),
            local_steps=averaging.ParameterAveraging(2),
        ),
        WORKERS,
        batch_size=5,
    )
    workers = [
        oracles.Worker(k, WORKERS, EPOCHS, 5, oracles.Momentum())
        for k in range(WORKERS)
    ]
    theta = np.asarray(quadratic.START, "float64")
    collected = []
    order = np.argsort(history.jobs["arrived"], kind="stable")
    for job in history.jobs[order]:
        worker = workers[job["worker"]]
        worker.steps(int(job["steps"]))
        collected.append((worker.anchor - worker.own, worker.examples))
        if len(collected) == 2:
            changes, weights = zip(*collected, strict=True)
            theta = theta - np.average(changes, axis=0, weights=weights)
            collected = []
        worker.give(theta)
    check(history, theta)


def downpour(n_fetch, n_push, seconds, latency, gamma):
    """Dean et al. 2012, with Adagrad: each worker's loop, event by event.

    A push is answered before a worker goes on; what is fetched is there a
    latency after it was read, which is a latency after it was asked for.

    Returns:
      The parameters, how often somebody fetched, and the staleness of each
      push, a list.
    """
    queue, number, fetches = [], itertools.count(), 0
    shared = {
        "theta": np.asarray(quadratic.START, "float64"),
        "squares": np.zeros(quadratic.SIZE),
    }
    staleness = []

    def push(worker):
        gradient, worker.accrued = worker.accrued, np.zeros(quadratic.SIZE)
        staleness.append(len(staleness) - worker.pulled)
        shared["squares"] = shared["squares"] + gradient**2
        rate = gamma / np.sqrt(shared["squares"])
        shared["theta"] = shared["theta"] - rate * gradient

    def fetch(worker):
        worker.give(shared["theta"])
        worker.pulled = len(staleness)

    def loop(worker, mine):
        """Yields what it waits for: seconds, and what then happens."""
        step = 0
        while worker.left:
            yield seconds[mine], lambda: worker.steps(1)
            step += 1
            if step % n_push == 0 or not worker.left:
                yield latency, lambda: push(worker)
                yield latency, lambda: None
            if step % n_fetch == 0 and worker.left:
                yield latency, lambda: fetch(worker)
                yield latency, lambda: "fetched"

    loops = []
    for mine in range(len(seconds)):
        worker = oracles.Worker(
            mine, len(seconds), EPOCHS, BATCH, oracles.Momentum()
        )
        worker.pulled = 0
        loops.append(loop(worker, mine))
        # The parameters travel at the beginning, too.
        heapq.heappush(queue, (latency, next(number), mine, lambda: None))
    while queue:
        now, _, mine, happens = heapq.heappop(queue)
        fetches += happens() == "fetched"
        later = next(loops[mine], None)
        if later is not None:
            wait, then = later
            heapq.heappush(queue, (now + wait, next(number), mine, then))
    return shared["theta"], fetches, staleness


@pytest.mark.parametrize("rates", [(3, 2), (2, 5)])
def test_downpour_fetches_and_pushes_each_at_its_rate(rates):
    n_fetch, n_push = rates
    seconds, latency = [1.0, 1.31, 0.77], 0.4
    history = simulate(
        f"downpour:n_fetch={n_fetch}:n_push={n_push}:outer_learning_rate=0.2",
        WORKERS,
        compute=simulation.SlowWorkers(
            simulation.Constant(1.0), dict(enumerate(seconds))
        ),
        network=simulation.Network(latency_seconds=latency),
    )
    wanted, fetches, staleness = downpour(
        n_fetch, n_push, seconds, latency, gamma=0.2
    )
    check(history, wanted)
    order = np.argsort(history.jobs["arrived"], kind="stable")
    np.testing.assert_array_equal(history.jobs["staleness"][order], staleness)
    assert history.fetched_bytes == fetches * 3 * 4 > 0
    assert history.push_bytes == history.pull_bytes == 3 * 4


def test_slower_workers_take_fewer_steps():
    history = simulate(
        "async_local_sgd:period=6",
        2,
        compute=simulation.SlowWorkers(simulation.Constant(1.0), {1: 2.7}),
        epochs=16,
    )
    fast, slow = (
        history.jobs["steps"][history.jobs["worker"] == worker].tolist()
        for worker in (0, 1)
    )
    assert fast == [6] * 16
    # The first period is not timed, as functions are traced in it; its own
    # first speed it knows after the second. floor(6 / 2.7) is 2.
    assert slow[:3] == [6, 6, 2] and set(slow[2:]) == {2}


def test_the_period_may_depend_on_the_step():
    history = simulate(
        Method(
            local_steps=averaging.ParameterAveraging(
                lambda step: tf.where(step <= 8, 2, 4), warmup_steps=2
            )
        ),
        2,
        compute=simulation.SlowWorkers(simulation.Constant(1.0), {1: 0.1}),
        network=simulation.Network(latency_seconds=0.01),
        epochs=3,
    )
    slow, fast = (
        history.jobs["steps"][history.jobs["worker"] == worker].tolist()
        for worker in (0, 1)
    )
    # Steps 1 and 2 by themselves, then pairs until the 8th, then four.
    assert fast == [1, 1, 2, 2, 2, 4, 4, 2]
    # As many steps, at its own time.
    assert slow == fast


def test_a_dead_worker_loses_the_steps_since_its_last_exchange():
    history = simulate(
        "parameter_averaging:period=3:synchronization=async",
        2,
        compute=simulation.Constant(1.0),
        network=simulation.Network(),
        epochs=1,
        failures=[simulation.Failure(worker=0, at=4.5, until=10.0)],
    )
    jobs = history.jobs[history.jobs["worker"] == 0]
    assert jobs["accepted"].tolist() == [True, False, True]
    # Batches 6 and 8 were begun, the second one not ended, and come again.
    assert jobs["batch"].tolist() == [0, 6, 6]
    assert jobs["steps"].tolist() == [3, 2, 3]
    assert history.evaluations[-1]["epoch"] == 1.0


# The same strategy with real workers.


STRATEGIES = {
    # 48 steps: what is left of the last period is pushed, too.
    "DiLoCo": lambda: tfdist.DiLoCoStrategy(5),
    "BMUF": lambda: tfdist.BMUFStrategy(5, block_momentum=0.5),
    "Downpour": lambda: tfdist.DownpourStrategy(
        3, 2, outer_optimizer=SGD(0.02)
    ),
    "elastic averaging": lambda: tfdist.ElasticAveragingStrategy(5, alpha=0.3),
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", ["DiLoCo", "Downpour", "BMUF", "elastic averaging"]
)
def test_one_process_trains_to_the_same(name):
    def optimizer():
        return decaying(momentum=0.6)

    strategy = STRATEGIES[name]()
    history = simulate(strategy, 1, optimizer)
    with strategy.scope():
        model = quadratic.model_fn(optimizer)()
    quadratic.fit(model, EPOCHS)
    strategy.barrier()
    check(history, model.get_weights()[0][:, 0])
