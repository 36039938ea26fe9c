"""Workers that are lost are named, and training goes on from a checkpoint."""

import contextlib
import re
import signal
import time

import pytest

from tests.all_reduce import failures
from tests.all_reduce import reports as reports_lib
from tests.multi_process.link import Link

pytestmark = pytest.mark.nightly


TRAIN = "tests.all_reduce.failures:train_for_ever"
# A second between heartbeats, and a machine that is busy.
MARGIN_SECONDS = 20.0


def check_error(worker, began, named):
    """Waits for the error of a worker, which names another one in time.

    Args:
        worker: a `TaskUnderTest`.
        began: when the other one was lost.
        named: pattern of its name.
    """
    report = worker.wait_for_report()
    first = report["error"].splitlines()[0]
    assert re.search(rf"{named} at \S+ is gone", first), first
    assert report["time"] - began < failures.TIMEOUT + MARGIN_SECONDS
    assert worker.wait() == 1


@pytest.mark.parametrize(
    ("number", "period"),
    [(signal.SIGKILL, None), (signal.SIGSTOP, None), (signal.SIGKILL, 2)],
)
def test_a_worker_that_is_gone_is_named_by_the_others(cluster, number, period):
    running = cluster(num_ps=0, num_workers=3)
    workers = running.start_workers(TRAIN, period=period)
    for worker in workers:
        worker.wait_for_steps(4)
    *others, gone = workers
    gone.send(number)
    began = time.time()
    for worker in others:
        check_error(worker, began, "/job:worker/task:2")


def test_workers_whose_link_is_cut_name_each_other(cluster):
    """The third one, which both can be reached from, ends with them."""
    running = cluster(num_ps=0, num_workers=3)
    there = [running.address("worker", index) for index in range(3)]
    workers, ways = [], []
    for index, other in ((0, 1), (1, 0)):
        addresses = [*there]
        addresses[other] = running.another_address()
        ways.append((addresses[other], there[other]))
        workers.append(
            running.start_by_other_ways(
                "worker", index, {"worker": addresses}, TRAIN
            )
        )
    workers.append(running.start("worker", 2, TRAIN))
    # Each waits until the others listen, and so must the links.
    for worker in workers:
        worker.expect("serves on port")
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(Link(*way)) for way in ways]
        for worker in workers:
            worker.wait_for_steps(4)
        for link in links:
            link.cut()
        began = time.time()
        for worker, named in zip(workers, ("1", "0", "[01]"), strict=True):
            check_error(worker, began, f"/job:worker/task:{named}")


# Of gradients in each step, and of averaging every two.
@pytest.mark.parametrize("period", [None, 2])
def test_a_step_that_another_worker_does_not_make_ends(cluster, period):
    running = cluster(num_ps=0, num_workers=2)
    first, second = running.start_workers(
        "tests.all_reduce.failures:train_alone", period=period
    )
    error = first.wait_for_report()["error"]
    assert "within 3 s" in error
    assert "stall_timeout" in error
    running.tell("the other has failed")
    for worker in (first, second):
        worker.wait()


def test_nan_is_an_error_of_the_worker_that_has_it(cluster):
    running = cluster(num_ps=0, num_workers=2)
    workers = running.start_workers("tests.all_reduce.failures:meet_nan")
    first, second = (worker.wait_for_report() for worker in workers)
    assert second["kind"] == "InvalidArgumentError"
    assert "/job:worker/task:1" in second["error"]
    assert "dense/kernel" in second["error"]
    # It ends, and so do the others.
    assert first["kind"] == "UnavailableError"
    assert "/job:worker/task:1 at " in first["error"]
    # Nothing of that step was applied.
    assert first["weight"] == second["weight"] == -1.0


def test_training_goes_on_from_a_checkpoint_bit_for_bit(cluster):
    whole, parts = reports_lib.whole_and_parts(
        cluster, "all_reduce.failures:train"
    )
    for report in (*whole, *parts):
        assert report["bits"] == whole[0]["bits"]
        # Three steps in each of four epochs.
        assert report["updates"] == [12]
