"""Real clusters that minimize, and whose tasks die."""

import functools

import numpy as np
import pytest
import scipy.optimize

from tests.sandblaster import tasks

PORTIONS = 24  # 8 for each of 3 workers; of 2 batches each.
TRAIN = "tests.sandblaster.tasks:train"


@functools.cache
def minimum():
    """Where SciPy ends."""
    return scipy.optimize.minimize(
        tasks.loss,
        np.zeros(18),
        jac=True,
        method="L-BFGS-B",
        options={"ftol": 0, "gtol": 1e-9},
    )


def check_minimum(report):
    """Checks that a worker has ended at the minimum."""
    np.testing.assert_allclose(report["weights"], minimum().x, atol=1e-6)
    last = report["iterations"][-1]
    np.testing.assert_allclose(last["value"], minimum().fun, rtol=1e-9)
    assert last["outcome"] == "converged"
    # Keras's metrics are less exact.
    np.testing.assert_allclose(report["losses"][-1], last["value"], rtol=1e-6)


def check_seen(losses, chiefs):
    """Checks that another worker has seen the chief's iterations.

    In their order, with the last one; one that is late leaves some out.
    """
    assert losses[-1] == chiefs[-1]
    left = iter(chiefs)
    assert all(loss in left for loss in losses)


def counted(report):
    """Portions that have counted, a list by worker."""
    return [one["counted"] for one in report["counts"].values()]


@pytest.mark.nightly
def test_kill_9_in_the_middle_of_a_portion_changes_nothing(cluster):
    """Each worker computes a portion, and waits in the second one."""
    made = cluster(num_ps=2, num_workers=3)
    made.start_servers()
    labels = [f"worker-{k}" for k in range(3)]
    workers = made.start_workers(TRAIN, holds=dict.fromkeys(labels, 3))
    for worker in workers:
        worker.expect("holding")
    *others, victim = workers
    victim.kill()
    for worker in others:
        made.tell(f"go on {worker.label}")
    # Servers wait a minute for the third one: that is tested elsewhere.
    assert [worker.wait() for worker in others] == [0, 0]
    chief, other = [worker.report() for worker in others]
    check_minimum(chief)
    assert other["weights"] == chief["weights"]
    check_seen(other["losses"], chief["losses"])
    assert other["accuracies"][-1] == chief["accuracies"][-1]
    evaluations = sum(one["evaluations"] for one in chief["iterations"])
    assert sum(counted(chief)) == PORTIONS * evaluations
    assert counted(chief)[2] == 1


@pytest.mark.nightly
def test_a_worker_that_comes_back_takes_part_again(cluster):
    made = cluster(num_ps=2, num_workers=2)
    made.start_servers()
    chief, victim = made.start_workers(
        TRAIN, holds={"worker-0": 100, "worker-1": 3}
    )
    victim.expect("holding")
    victim.kill()
    chief.expect("holding")
    # Of the evaluation in which the chief waits, it computes all the rest.
    again = made.start("worker", 1, TRAIN, holds={"worker-1.1": 5})
    again.expect("holding")
    for label in ("worker-0", "worker-1.1"):
        made.tell(f"go on {label}")
    made.finish()
    check_minimum(chief.report())
    assert again.report()["weights"] == chief.report()["weights"]
    # It has left out what was done when it began.
    check_seen(again.report()["losses"], chief.report()["losses"])


@pytest.mark.nightly
def test_all_end_when_the_chief_does(cluster):
    made = cluster(num_ps=1, num_workers=2)
    made.start_servers()
    chief = made.start("worker", 0, TRAIN, epochs=3)
    other = made.start("worker", 1, TRAIN)
    made.finish()
    assert len(chief.report()["losses"]) == 3
    assert other.report()["weights"] == chief.report()["weights"]
    assert len(other.report()["losses"]) <= 4


@pytest.mark.nightly
def test_the_next_fit_begins_when_all_have_what_the_last_one_ended_with(
    cluster,
):
    """One is still in the first iteration when the chief has made all."""
    made = cluster(num_ps=1, num_workers=2)
    made.start_servers()
    workers = made.start_workers(
        "tests.sandblaster.tasks:two_fits", held="worker-1"
    )
    workers[1].expect("holding")
    workers[0].expect(
        "Waiting for /job:worker/task:1 to end this call of `fit`"
    )
    made.tell("go on worker-1")
    made.finish()
    chief, other = (worker.report()["fits"] for worker in workers)
    for mine, theirs in zip(chief, other, strict=True):
        # The one that was late shows the newest iteration for both.
        assert theirs[0][-1] == mine[0][-1]
        assert theirs[1] == mine[1]
