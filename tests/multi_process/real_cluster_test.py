"""What a wait for a task raises: `Waited` when time is up, and only then."""

import sys
import types

import pytest

from tests import waits
from tests.multi_process import real_cluster


def task(directory, status):
    """One that has ended with `status`, or that runs if it is None."""

    def wait_for(key, what, timeout):
        del key, what, timeout
        if status is None:
            raise waits.Waited("no status")
        return status

    fake = types.SimpleNamespace(
        fork=lambda **request: (1, 1),
        known=lambda key, what: status,
        wait_for=wait_for,
    )
    return real_cluster.TaskUnderTest(fake, "worker-0", directory)


WAITS = {
    "expect": lambda one: one.expect("a word", 0.0),
    "report": lambda one: one.wait_for_report(0.0),
    "steps": lambda one: one.wait_for_steps(1, 0.0),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_task_that_runs_is_waited_for_and_one_that_ended_is_wrong(
    tmp_path, name
):
    with pytest.raises(waits.Waited, match="worker-0"):
        WAITS[name](task(tmp_path, None))
    with pytest.raises(AssertionError) as raised:
        WAITS[name](task(tmp_path, 1))
    assert raised.type is AssertionError


def test_the_end_of_a_task_is_waited_for(tmp_path):
    with pytest.raises(waits.Waited, match="worker-0 runs after 0 s"):
        task(tmp_path, None).wait(0.0)
    assert task(tmp_path, 3).wait(0.0) == 3


def test_a_cluster_that_runs_is_waited_for_and_one_that_failed_is_wrong(
    tmp_path,
):
    with real_cluster.ClusterUnderTest(None, tmp_path) as cluster:
        cluster.tasks = [task(tmp_path, 0), task(tmp_path, None)]
        with pytest.raises(waits.Waited, match="worker-0 runs after 0 s"):
            cluster.finish(0.0)
        cluster.tasks = [task(tmp_path, None), task(tmp_path, 1)]
        with pytest.raises(AssertionError, match="exited with 1") as raised:
            cluster.finish(0.0)
        assert raised.type is AssertionError
        cluster.tasks = [task(tmp_path, 0)]
        cluster.finish(0.0)


def test_a_program_that_runs_too_long_is_killed_and_waited_for():
    with pytest.raises(waits.Waited, match="runs after 0.1 s"):
        waits.run([sys.executable, "-c", "while True: pass"], seconds=0.1)
