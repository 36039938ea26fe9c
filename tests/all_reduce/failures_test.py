"""Workers that are lost are named, and training goes on from a checkpoint."""

import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests.all_reduce import failures

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_gone_is_named_by_the_others(cluster, number):
    running = cluster(num_ps=0, num_workers=3)
    workers = running.start_workers("tests.all_reduce.failures:train_for_ever")
    for worker in workers:
        worker.wait_for_steps(4)
    *others, gone = workers
    gone.send(number)
    began = time.time()
    for worker in others:
        report = worker.wait_for_report()
        assert "/job:worker/task:2 at " in report["error"].splitlines()[0]
        # A second between heartbeats, and a machine that is busy.
        assert report["time"] - began < failures.TIMEOUT + 20.0
        assert worker.wait() == 1


def test_a_step_that_another_worker_does_not_make_ends(cluster):
    running = cluster(num_ps=0, num_workers=2)
    first, second = running.start_workers(
        "tests.all_reduce.failures:train_alone"
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
    running = cluster(num_ps=0, num_workers=2)

    def train(directory, epochs):
        workers = running.start_workers(
            "tests.all_reduce.failures:train",
            directory=directory,
            epochs=epochs,
        )
        running.finish()
        return [worker.report() for worker in workers]

    whole = train("whole", 4)
    train("parts", 2)
    parts = train("parts", 4)
    assert [report["resumed"] for report in parts] == [2, 2]
    for report in (*whole, *parts):
        assert report["bits"] == whole[0]["bits"]
        # Three steps in each of four epochs.
        assert report["updates"] == [12]


def test_one_death_costs_one_restart(tmp_path):
    flags = ["--num_ps=0", "--num_workers=2", "--max_restarts=1"]
    program = pathlib.Path(__file__).with_name("dies_once.py")
    ended = subprocess.run(
        [sys.executable, "-m", "tfdist", "launch", *flags, program, tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200.0,
        check=False,
    )
    assert (tmp_path / "died").exists()
    assert ended.returncode == 0, ended.stdout
    # Two steps in each of four epochs; the launcher shows the chief's output.
    assert ended.stdout.count("updates: 8") == 1
    assert ended.stdout.count("restart 1 of 1") == 1
