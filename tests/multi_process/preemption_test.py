"""Workers that get SIGTERM leave; others join, and nobody waits in vain.

Every gradient is a constant, so that the weights are minus the sum of what the
updates were made of: a gradient that is lost, or counts twice, shows.
"""

import signal

import pytest

from tests.multi_process.server_failure_test import check_exact
from tests.multi_process.server_recovery_test import go_on

pytestmark = pytest.mark.nightly

# What starts and ends of processes take on two cores; far less than
# `start_timeout`, and than servers wait for workers that are lost.
WITHIN = 50.0
# Status of who was told to end before training was over.
TOLD = 128 + signal.SIGTERM


def start(made, index, **arguments):
    """Starts a worker."""
    return made.start("worker", index, "preemption_tasks:train", **arguments)


def test_sigterm_in_a_step_the_step_counts_and_the_others_go_on(cluster):
    made = cluster(num_workers=2)
    (server,) = made.start_servers()
    going = start(made, 0, value=1.0, until="stop")
    leaving = start(made, 1, value=64.0, until="stop", hold=5, release="go on")
    # The main thread is in a step, and waits for its data.
    leaving.expect("holding")
    leaving.send(signal.SIGTERM)
    leaving.expect("Got SIGTERM: leaving as soon as this step is done")
    assert leaving.runs() and leaving.steps() == 5
    made.tell("go on")
    assert leaving.wait(WITHIN) == TOLD
    report = leaving.report()
    # Not the end of training, at which callbacks delete backups.
    assert report["preempted"] and not report["ended"]
    assert leaving.steps() == 6
    going.wait_for_steps(going.steps() + 10)
    made.tell("stop")
    assert [going.wait(WITHIN), server.wait(WITHIN)] == [0, 0]
    (updates,) = going.report()["updates"]
    assert updates == going.steps() + 6
    assert going.report()["weights"] == [-going.steps() - 6 * 64.0]


def test_a_cluster_grows_and_shrinks_and_every_gradient_counts(cluster):
    made = cluster(num_workers=3, initial_workers=1)
    (server,) = made.start_servers(lost_after=1000.0)
    bounded = {"method": "bounded", "until": "stop"}
    # It does not wait for those that have not been started.
    staying = start(made, 0, value=1.0, hold=20, release="go on", **bounded)
    staying.expect("holding", timeout=WITHIN)
    assert staying.steps() == 20
    first = start(made, 1, value=3.0, **bounded)
    # It begins where the other is, and then waits for it in its second step.
    first.expect("Waiting for the gradients of /job:worker/task:0")
    assert first.steps() == 1
    first.send(signal.SIGTERM)
    assert first.wait(WITHIN) == TOLD
    assert first.steps() == 2 and staying.steps() == 20
    made.tell("go on")
    staying.wait_for_steps(30)
    # Both again, and a notice at any moment.
    second = start(made, 1, value=3.0, **bounded)
    second.wait_for_steps(5)
    second.send(signal.SIGTERM)
    assert second.wait(WITHIN) == TOLD
    staying.wait_for_steps(staying.steps() + 10)
    made.tell("stop")
    assert staying.wait(WITHIN) == 0
    # Nor does it wait for a worker that never was there, or that may return.
    assert server.wait(WITHIN) == 0
    mine, others = staying.steps(), 2 + second.steps()
    report = staying.report()
    assert report["updates"] == [mine + others]
    assert report["weights"] == [-mine * 1.0 - others * 3.0]
    for count in report["counts"].values():
        # How late they were depends on when the notice came.
        assert count.pop("staleness") >= 0
    assert report["counts"] == {
        f"/job:worker/task:{k}": {
            "pushed": n,
            "accepted": n,
            "dropped": 0,
            "nonfinite": 0,
        }
        for k, n in enumerate([mine, others, 0])
    }
    assert list(report["states"].values())[1:] == ["LEFT", "UNKNOWN"]


def test_a_server_that_is_told_to_end_leaves_a_snapshot_and_asks_to_be_back(
    cluster, tmp_path
):
    made = cluster(num_workers=1)

    def serve():
        # It writes none before it is told to end.
        return made.start(
            "ps",
            0,
            "recovery_tasks:serve",
            directory=str(tmp_path / "kept"),
            every=1e6,
        )

    server = serve()
    workers = made.start_workers("failure_tasks:train", value=1.0, until="stop")
    go_on(workers, 5)
    server.send(signal.SIGTERM)
    server.expect("before training was over: it ends, and workers wait")
    assert server.wait(WITHIN) == TOLD
    server = serve()
    server.expect("begins with its snapshot")
    go_on(workers, 5)
    made.tell("stop")
    assert [task.wait(WITHIN) for task in (*workers, server)] == [0, 0]
    check_exact([worker.report() for worker in workers])


def test_a_server_whose_workers_have_failed_asks_for_nothing(cluster):
    made = cluster(num_workers=1)
    (server,) = made.start_servers()
    (worker,) = made.start_workers("failure_tasks:raise_after_a_step")
    assert worker.wait(WITHIN) == 1
    server.send(signal.SIGTERM)
    assert server.wait(WITHIN) == TOLD
    assert "before training was over" not in server.output()
