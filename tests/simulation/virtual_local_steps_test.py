"""Simulated synchronous local steps against NumPy, and limiting cases."""

import keras
import numpy as np
import pytest

from tests.simulation import local_oracles as oracles
from tests.simulation import quadratic
from tfdist import averaging
from tfdist import simulation
from tfdist.simulation import Method

WORKERS, EPOCHS = 4, 4
SGD = keras.optimizers.SGD


def simulate(strategy, num_workers=WORKERS, optimizer=None, **settings):
    return simulation.simulate(
        settings.pop("model_fn", quadratic.model_fn(optimizer)),
        settings.pop("data", (quadratic.X, quadratic.Y)),
        strategy,
        num_workers=num_workers,
        **{
            "epochs": EPOCHS,
            "batch_size": quadratic.BATCH,
            "shuffle": False,
            "compute": simulation.Gamma(1.0, shape=4.0),
            "network": simulation.Network(latency_seconds=0.2),
            **settings,
        },
    )


def check(history, wanted):
    np.testing.assert_allclose(
        quadratic.weights_of(history), wanted, rtol=1e-4, atol=1e-5
    )


@pytest.mark.nightly
def test_weights_are_averaged_by_examples_and_momentum_stays_local():
    # Ten batches, the last of three examples; worker 0 has four of them, and
    # pushes what is left of its period at the end.
    history = simulate(
        "parameter_averaging:period=3",
        3,
        lambda: SGD(quadratic.RATE, momentum=0.6),
        batch_size=5,
        epochs=2,
    )
    wanted = oracles.in_rounds(
        3,
        2,
        5,
        3,
        lambda: oracles.Momentum(momentum=0.6),
        lambda theta, workers: oracles.mean_of(workers),
    )
    check(history, wanted)
    of_worker = history.jobs["steps"][history.jobs["worker"] == 0]
    np.testing.assert_array_equal(of_worker, [3, 3, 2])
    # A parameter of three floats, once there and once back for each push.
    assert len(history.jobs) == 3 + 2 + 2
    assert history.total_bytes == 7 * 2 * 3 * 4


@pytest.mark.nightly
def test_slots_are_averaged_as_weights_are():
    history = simulate(
        "parameter_averaging:period=2:average_optimizer_state=true",
        3,
        lambda: SGD(quadratic.RATE, momentum=0.6, nesterov=True),
        batch_size=5,
    )

    def after(workers, theta):
        slot = np.average(
            [worker.inner.slots[0] for worker in workers],
            axis=0,
            weights=[worker.examples for worker in workers],
        )
        for worker in workers:
            worker.inner.slots = [slot]
            worker.give(theta)

    wanted = oracles.in_rounds(
        3,
        EPOCHS,
        5,
        2,
        lambda: oracles.Momentum(momentum=0.6, nesterov=True),
        lambda theta, workers: oracles.mean_of(workers),
        after,
    )
    check(history, wanted)
    # As many bytes of momentum as of weights.
    assert history.push_bytes == history.pull_bytes == 2 * 3 * 4


def test_bmuf_filters_blocks_and_begins_momentum_anew():
    history = simulate(
        "bmuf:period=2:block_rate=0.8:nesterov=true",
        WORKERS,
        lambda: SGD(quadratic.RATE, momentum=0.6),
    )

    def after(workers, theta):
        for worker in workers:
            worker.inner.slots = [np.zeros(quadratic.SIZE)]
            worker.give(theta)

    wanted = oracles.in_rounds(
        WORKERS,
        EPOCHS,
        quadratic.BATCH,
        2,
        lambda: oracles.Momentum(momentum=0.6),
        oracles.Bmuf(1 - 1 / WORKERS, 0.8),
        after,
    )
    check(history, wanted)


@pytest.mark.nightly
def test_backup_workers_lose_their_steps_and_keep_their_momentum():
    history = simulate(
        "parameter_averaging:period=2:synchronization=backup_workers",
        WORKERS,
        lambda: SGD(quadratic.RATE, momentum=0.6),
        batch_size=2,
    )
    theta = np.asarray(quadratic.START, "float64")
    workers = [
        oracles.Worker(k, WORKERS, EPOCHS, 2, oracles.Momentum(momentum=0.6))
        for k in range(WORKERS)
    ]
    for version in range(history.updates):
        jobs = history.jobs[history.jobs["pulled"] == version]
        for job in jobs:
            worker = workers[job["worker"]]
            worker.give(theta)
            worker.steps(2)
        theta = oracles.mean_of(
            [workers[job["worker"]] for job in jobs if job["accepted"]]
        )
    assert history.summary()["dropped"] > 3
    check(history, theta)


@pytest.mark.nightly
def test_statistics_follow_the_examples():
    def build():
        model = keras.Sequential(
            [
                keras.Input((quadratic.SIZE,)),
                keras.layers.BatchNormalization(
                    momentum=0.8, center=False, scale=False
                ),
                keras.layers.Dense(1, use_bias=False),
                keras.layers.Reshape(()),
            ]
        )
        model.compile(SGD(0.01), "mse")
        return model

    means = {}
    for name in ("sync", "async"):
        history = simulate(
            f"parameter_averaging:period=2:synchronization={name}",
            3,
            model_fn=build,
            batch_size=5,
            epochs=2,
        )
        means[name] = history.model.layers[0].moving_mean.numpy(), history

    def moved(mean, worker, number):
        for batch in worker.left[:number]:
            x = quadratic.X[oracles.rows_of(batch, 5)].astype("float64")
            mean = 0.8 * mean + 0.2 * x.mean(0)
        worker.steps(number)
        return mean

    def made():
        return [
            oracles.Worker(k, 3, 2, 5, oracles.Momentum()) for k in range(3)
        ]

    mean, workers = np.zeros(quadratic.SIZE), made()
    while active := [worker for worker in workers if worker.left]:
        theirs = [moved(mean, worker, 2) for worker in active]
        seen = [worker.examples for worker in active]
        mean = np.average(theirs, axis=0, weights=seen)
        for worker in active:
            worker.give(worker.own)
    found, _ = means["sync"]
    np.testing.assert_allclose(found, mean, rtol=1e-4, atol=1e-6)

    # Where each push is an update, it moves them by its worker's share.
    found, history = means["async"]
    mean, workers = np.zeros(quadratic.SIZE), made()
    given = [mean] * 3
    order = np.argsort(history.jobs["arrived"], kind="stable")
    for job in history.jobs[order]:
        own = moved(
            given[job["worker"]], workers[job["worker"]], int(job["steps"])
        )
        mean = given[job["worker"]] = mean + (own - mean) / 3
    np.testing.assert_allclose(found, mean, rtol=1e-4, atol=1e-6)


# Where methods are the same.


def test_averaging_after_every_step_of_sgd_is_sync():
    one, other = simulate("parameter_averaging:period=1"), simulate("sync")
    np.testing.assert_allclose(
        quadratic.weights_of(one), quadratic.weights_of(other), rtol=1e-6
    )
    for field in ("worker", "batch", "staleness", "arrived", "decided"):
        np.testing.assert_array_equal(one.jobs[field], other.jobs[field])
    assert one.total_bytes == other.total_bytes


@pytest.mark.nightly
def test_accrued_gradients_of_one_step_are_async_to_the_bit():
    steps = averaging.AccruedGradients(1, 1, SGD(quadratic.RATE))
    one = simulate(Method(local_steps=steps), optimizer=lambda: SGD(0.3))
    other = simulate("async")
    assert other.staleness.max() > 1
    np.testing.assert_array_equal(
        quadratic.weights_of(one), quadratic.weights_of(other)
    )
    for field in ("worker", "batch", "staleness", "arrived", "decided"):
        np.testing.assert_array_equal(one.jobs[field], other.jobs[field])


def _with_all_state(optimizer):
    def build():
        model = keras.Sequential(
            [
                keras.Input((quadratic.SIZE,)),
                keras.layers.Dense(
                    4, activation="relu", kernel_constraint="max_norm"
                ),
                keras.layers.BatchNormalization(momentum=0.8),
                keras.layers.Dropout(0.3, seed=5),
                keras.layers.Dense(1),
                keras.layers.Reshape(()),
            ]
        )
        model.compile(optimizer(), "mse")
        return model

    return build


def _optimizer():
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 5, 0.8)
    return keras.optimizers.AdamW(rate, weight_decay=0.1, clipnorm=0.5)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "strategy",
    [
        "parameter_averaging:period=4",
        "parameter_averaging:period=4:synchronization=async",
    ],
)
def test_one_worker_is_plain_keras(strategy):
    history = simulate(strategy, 1, model_fn=_with_all_state(_optimizer))
    keras.utils.set_random_seed(0)
    model = _with_all_state(_optimizer)()
    quadratic.fit(model, EPOCHS)
    for found, wanted in zip(
        history.model.get_weights(), model.get_weights(), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
def test_parameters_meet_constraints():
    """Of the data, one weight would be negative."""

    def model_fn():
        model = quadratic.model_fn()()
        model.trainable_variables[0].constraint = keras.constraints.NonNeg()
        model.set_weights([np.ones([quadratic.SIZE, 1])])
        return model

    history = simulate("diloco:period=1", 1, model_fn=model_fn)
    assert quadratic.weights_of(history).min() >= 0.0


@pytest.mark.nightly
def test_long_periods_are_no_idleness():
    """Real workers are given up after 600 seconds without a sign of work."""
    history = simulate(
        "parameter_averaging:period=8",
        2,
        compute=simulation.SlowWorkers(simulation.Constant(100.0), {1: 2.0}),
    )
    jobs = history.jobs
    assert jobs["accepted"].all() and not jobs["staleness"].any()
    assert np.diff(np.sort(jobs["arrived"])).max() > 600
    assert history.updates == len(jobs) / 2
