"""Workers without servers that average gradients: exact, equal, and bounded."""

import signal

import numpy as np
import pytest

from tests import nightly
from tests.multi_process import all_reduce_tasks
from tests.multi_process import real_cluster

WORKERS = 3


def oracle():
    """Momentum SGD of the mean of those gradients that there are, in float64.

    Keras's rule: v <- momentum v - rate g, w <- w + v.

    Returns:
        Weights after each call of `fit`, the velocity, and updates.
    """
    data = [all_reduce_tasks.data_of(worker) for worker in range(WORKERS)]
    weights = np.zeros((all_reduce_tasks.FEATURES, 1))
    velocity, updates, shown = np.zeros_like(weights), 0, []
    for call in range(2):
        for step in range(max(all_reduce_tasks.BATCHES)):
            gradients = []
            for worker in range(WORKERS):
                if step >= all_reduce_tasks.BATCHES[worker]:
                    continue
                x, y = data[worker][call][step]
                if np.isfinite(y).all():
                    error = x @ weights - y
                    gradients.append(2 * x.T @ error / len(x))
            velocity = all_reduce_tasks.MOMENTUM * velocity
            velocity -= all_reduce_tasks.RATE * np.mean(gradients, axis=0)
            weights = weights + velocity
            updates += 1
        shown.append(weights.ravel())
    return shown, velocity.ravel(), updates


@pytest.mark.smoke
@pytest.mark.parametrize("run_eagerly", nightly.also([False], [True]))
def test_it_is_momentum_sgd_of_the_mean_gradient(cluster, run_eagerly):
    running = cluster(num_ps=0, num_workers=WORKERS)
    workers = running.start_workers(
        "all_reduce_tasks:regress", run_eagerly=run_eagerly
    )
    running.finish()
    reports = [worker.report() for worker in workers]
    shown, velocity, updates = oracle()
    first = reports[0]
    np.testing.assert_allclose(first["weights"], shown, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        first["momentum"], velocity, rtol=1e-4, atol=1e-5
    )
    for worker, report in enumerate(reports):
        assert report["over"]
        # To the bit, whoever has ended first.
        for key in ("weights", "momentum"):
            assert report[key] == first[key]
        assert report["updates"] == [updates]
        assert report["iterations"] == updates
        dropped = int(worker == all_reduce_tasks.BAD[0])
        pushed = 2 * all_reduce_tasks.BATCHES[worker]
        assert report["counts"] == {
            "pushed": pushed,
            "dropped": dropped,
            "applied": [pushed - dropped],
            "elsewhere": [0],
            "lost": [0],
        }


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """By strategy, the reports of its workers."""
    return real_cluster.reports_of(
        zygote,
        tmp_path_factory,
        "all_reduce_tasks:train_models",
        "strategy",
        {"all_reduce": 0, "sync": 1},
        num_workers=2,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("name", all_reduce_tasks.MODELS)
def test_all_reduce_and_servers_come_to_the_same(reports, name):
    first, second = (report[name] for report in reports["all_reduce"])
    there = reports["sync"][0][name]
    assert first["iterations"] == there["iterations"]
    for key in ("weights", "slots", "state"):
        assert second[key] == first[key]
    for here, other in zip(first["weights"], there["weights"], strict=True):
        np.testing.assert_allclose(here, other, rtol=1e-5, atol=1e-6)
    assert [first["saved"], second["saved"]] == [True, None]


@pytest.mark.nightly
def test_statistics_are_the_means_of_all_workers(reports):
    mean = np.zeros(all_reduce_tasks.FEATURES)
    momentum = all_reduce_tasks.STATISTICS_MOMENTUM
    data = [all_reduce_tasks.numbers_of(worker) for worker in range(2)]
    steps = len(data[0]) // all_reduce_tasks.BATCH
    for step in range(steps):
        here = slice(
            step * all_reduce_tasks.BATCH, (step + 1) * all_reduce_tasks.BATCH
        )
        batch = np.mean([x[here].mean(axis=0) for x in data], axis=0)
        mean = momentum * mean + (1 - momentum) * batch
    found = reports["all_reduce"][0]["normalized"]["state"][0]
    np.testing.assert_allclose(found, mean, rtol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "number", nightly.also([signal.SIGKILL], [signal.SIGSTOP])
)
def test_a_worker_that_is_gone_is_named_by_the_others(cluster, number):
    running = cluster(num_ps=0, num_workers=WORKERS)
    workers = running.start_workers("all_reduce_tasks:train_for_ever")
    for worker in workers:
        worker.wait_for_steps(4)
    *others, gone = workers
    gone.send(number)
    for worker in others:
        assert "/task:" in worker.wait_for_report()["error"]
        assert worker.wait() == 1
