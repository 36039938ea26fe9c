"""Simulated runs against NumPy, and where methods are the same."""

import numpy as np
import pytest

from tests import nightly
from tests.correction import oracles
from tests.simulation import quadratic
from tfdist import correction
from tfdist import simulation
from tfdist import synchronization
from tfdist.simulation import Method

WORKERS, EPOCHS = 4, 5
RATE = quadratic.RATE


def simulate(strategy, num_workers=WORKERS, **settings):
    settings = {
        "epochs": EPOCHS,
        "batch_size": quadratic.BATCH,
        "shuffle": False,
        "compute": simulation.Gamma(1.0, shape=4.0),
        **settings,
    }
    return simulation.simulate(
        settings.pop("model_fn", quadratic.model_fn()),
        (quadratic.X, quadratic.Y),
        strategy,
        num_workers=num_workers,
        **settings,
    )


CASES = {
    "nothing": (None, oracles.Nothing),
    "delay compensation, copies from workers": (
        lambda: correction.DelayCompensation(0.7, None, backups="worker"),
        lambda: oracles.DelayCompensation(0.7),
    ),
    "DANA-Zero": (
        lambda: correction.DANA("zero", 0.5),
        lambda: oracles.DanaZero(WORKERS, RATE, 0.5),
    ),
    "DANA-Slim": (
        lambda: correction.DANA("slim", 0.5),
        lambda: oracles.DanaSlim(WORKERS, 0.5),
    ),
}


def replay(history, oracle, share=1):
    """What the oracle makes of the gradients in the order of the history."""
    server = oracles.Server(
        quadratic.START,
        WORKERS,
        oracle,
        lambda w, g: w - RATE * g,
        share,
    )
    jobs = history.jobs[np.argsort(history.jobs["arrived"], kind="stable")]
    found, left = [], set()
    last = {int(worker): k for k, worker in enumerate(jobs["worker"])}
    for number, job in enumerate(jobs):
        worker = int(job["worker"])
        if hasattr(oracle, "gone"):
            # Servers forget who has left before the next gradient counts.
            for other in set(last) - left:
                if last[other] < number:
                    oracle.gone(other)
                    left.add(other)
        gradient = quadratic.gradient(
            server.copies[worker], quadratic.rows_of(int(job["batch"]))
        )
        found.append(server.arrive(worker, gradient))
    np.testing.assert_array_equal(found, jobs["staleness"])
    assert max(found) > 1, "nothing was late"
    return server.theta


@pytest.mark.parametrize("name", CASES)
def test_async_with_each_correction_is_its_paper(name):
    make, make_oracle = CASES[name]
    history = simulate(Method(correction=make() if make else None))
    wanted = replay(history, make_oracle())
    np.testing.assert_allclose(
        quadratic.weights_of(history), wanted, rtol=1e-4, atol=1e-5
    )


def test_softsync_averages():
    oracle = oracles.DanaZero(WORKERS, RATE, 0.5, share=2)
    made = correction.DANA("zero", 0.5)
    method = Method(synchronization.SoftSync(2), made)
    history = simulate(method)
    wanted = replay(history, oracle, share=2)
    np.testing.assert_allclose(
        quadratic.weights_of(history), wanted, rtol=1e-4, atol=1e-5
    )


def test_sync_is_one_machine_with_a_batch_as_large_as_all():
    history = simulate("sync")
    weights = np.asarray(quadratic.START, "float64")
    batches = quadratic.EXAMPLES // quadratic.BATCH
    for step in range(EPOCHS * batches // WORKERS):
        first = step * WORKERS % batches
        rows = np.concatenate(
            [quadratic.rows_of(first + k) for k in range(WORKERS)]
        )
        weights = weights - RATE * quadratic.gradient(weights, rows)
    np.testing.assert_allclose(
        quadratic.weights_of(history), weights, rtol=1e-5, atol=1e-6
    )


def test_backup_workers_use_the_first_and_drop_the_others():
    history = simulate("backup_workers:backup_workers=1")
    weights = np.asarray(quadratic.START, "float64")
    dropped = 0
    for version in range(history.updates):
        jobs = history.jobs[history.jobs["pulled"] == version]
        used = jobs[jobs["accepted"]]
        late = jobs[~jobs["accepted"]]
        dropped += len(late)
        if len(late):
            assert used["arrived"].max() <= late["arrived"].min()
        mean = np.mean(
            [
                quadratic.gradient(weights, quadratic.rows_of(int(b)))
                for b in used["batch"]
            ],
            axis=0,
        )
        weights = weights - RATE * mean
    assert dropped
    np.testing.assert_allclose(
        quadratic.weights_of(history), weights, rtol=1e-4, atol=1e-5
    )


SAME = {
    "softsync of one is async": ("softsync:s=1", "async"),
    "lambda_0 = 0 is async": ("dc_asgd:lambda_0=0", "async"),
    "no backup worker is sync": ("backup_workers:backup_workers=0", "sync"),
}


@pytest.mark.parametrize("name", nightly.also([*SAME][:1], [*SAME][1:]))
def test_limiting_cases_are_the_same_to_the_bit(name):
    one, other = map(simulate, SAME[name])
    np.testing.assert_array_equal(
        quadratic.weights_of(one), quadratic.weights_of(other)
    )
    for field in ("worker", "batch", "staleness", "arrived", "decided"):
        np.testing.assert_array_equal(one.jobs[field], other.jobs[field])


def test_staleness_bound_of_zero_is_lock_step():
    history = simulation.timing(
        "bounded_staleness:max_staleness=0",
        num_workers=WORKERS,
        steps=40,
        compute=simulation.Gamma(1.0, shape=4.0),
    )
    # Each step is computed from all gradients of the steps before.
    np.testing.assert_array_equal(
        history.jobs["pulled"], history.jobs["step"] * WORKERS
    )


class EveryOther(synchronization.Synchronization):
    """A user's own: uses every second gradient."""

    drops = True

    def decide(self, state):
        import tensorflow as tf

        arrived = state.arrived
        used = arrived & tf.equal(state.arrivals % 2, 0)
        state = state.append(used, first=1, count=1)
        return state.drop(arrived & ~used).grant(used)


class Halved(correction.Correction):
    """A user's own: half of each gradient that is late."""

    def correct(self, late, slots):
        import tensorflow as tf

        factor = tf.where(late.staleness > 0, 0.5, 1.0)
        return late.values * factor


def test_methods_of_users_work_unchanged():
    history = simulate(Method(EveryOther(), Halved()))
    assert history.updates == len(history.jobs) // 2
    order = np.argsort(history.jobs["arrived"], kind="stable")
    np.testing.assert_array_equal(
        history.jobs["accepted"][order], np.arange(len(order)) % 2 == 1
    )
    versions = [np.asarray(quadratic.START, "float64")]
    for job in history.jobs[order][1::2]:
        gradient = quadratic.gradient(
            versions[job["pulled"]], quadratic.rows_of(int(job["batch"]))
        )
        factor = 0.5 if job["staleness"] > 0 else 1.0
        assert job["staleness"] == len(versions) - 1 - job["pulled"]
        versions.append(versions[-1] - RATE * factor * gradient)
    np.testing.assert_allclose(
        quadratic.weights_of(history), versions[-1], rtol=1e-4, atol=1e-5
    )
