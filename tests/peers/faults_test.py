"""Every update counts once on each worker, whatever happens on its way."""

import signal

import pytest

from tests.all_reduce import reports as reports_lib
from tests.peers import sums

pytestmark = pytest.mark.nightly

TRAIN = "tests.peers.faults:train"
THRESHOLD = "threshold(tau=0.0625)"


def check_all_is_there(reports):
    """Each replica is the sum, and each message was applied once."""
    expected = sums.sum_of(reports).tolist()
    for me, report in reports.items():
        assert report["replica"] == expected
        assert report["after"] == expected
        for other, theirs in reports.items():
            if other == me:
                continue
            name = f"/job:worker/task:{other}"
            counts = report["counts"]
            assert counts["applied"][name] == theirs["counts"]["sent"]
            assert counts["delivered"][name] == counts["sent"]
            assert counts["lost"][name] == counts["missed"][name] == 0


def reports_of(workers):
    return {k: worker.wait_for_report() for k, worker in enumerate(workers)}


# With a codec: below, and the smoke.
def test_four_workers_end_at_the_sum_of_300_steps_each(cluster):
    running = cluster(num_ps=0, num_workers=4)
    workers = running.start_workers(TRAIN, steps=300)
    running.finish()
    check_all_is_there(reports_of(workers))


@pytest.mark.parametrize("compression", [None, THRESHOLD])
def test_a_slow_receiver_with_a_small_queue_gets_everything(
    cluster, compression
):
    running = cluster(num_ps=0, num_workers=2)
    settings = {"compression": compression, "capacity": 2}
    workers = [
        running.start("worker", 0, TRAIN, steps=300, **settings),
        running.start(
            "worker", 1, TRAIN, steps=30, pace=0.03, hold=4, **settings
        ),
    ]
    workers[0].wait_for_steps(300)
    running.tell("go on worker-1")
    running.finish()
    reports = reports_of(workers)
    check_all_is_there(reports)
    # 300 dense updates in an inbox of four are summed up; of 2,048 elements
    # as thresholds many fit into the bytes of one vector.
    assert reports[0]["merged"] > 100


def test_a_worker_that_was_stopped_for_longer_is_told(cluster):
    running = cluster(num_ps=0, num_workers=3)
    workers = running.start_workers(
        TRAIN, steps=10**6, pace=0.01, until="stop", worker_timeout=3.0
    )
    for worker in workers:
        worker.wait_for_steps(20)
    workers[2].send(signal.SIGSTOP)
    for worker in workers[:2]:
        worker.expect("/job:worker/task:2 is given up")
    workers[2].send(signal.SIGCONT)
    running.tell("stop")
    assert "was given up by" in workers[2].wait_for_report()["error"]
    others = reports_of(workers[:2])
    check_survivors(others, 2)


def check_survivors(reports, lost):
    """Replicas are the sum with what each has had of the lost worker."""
    name = f"/job:worker/task:{lost}"
    for report in reports.values():
        applied = report["counts"]["applied"][name]
        applied += report["counts"]["fetched"][name]
        assert applied > 0
        expected = sums.sum_of(reports, {lost: applied})
        assert report["replica"] == expected.tolist()
        counts = report["counts"]
        assert (
            counts["delivered"][name] + counts["lost"][name] == (counts["sent"])
        )
        assert report["after"] == reports[0]["replica"]


def test_the_others_go_on_without_a_worker_that_was_killed(cluster):
    running = cluster(num_ps=0, num_workers=3)
    workers = running.start_workers(
        TRAIN, steps=10**6, pace=0.01, until="stop", worker_timeout=3.0
    )
    for worker in workers:
        worker.wait_for_steps(20)
    workers[2].kill()
    for worker in workers[:2]:
        worker.expect("/job:worker/task:2 is given up")
    running.tell("stop")
    running.finish()
    check_survivors(reports_of(workers[:2]), 2)


def test_survivors_agree_on_the_last_updates_of_a_dead_worker(cluster):
    """One that did not get them takes the first worker's parameters."""
    running = cluster(num_ps=0, num_workers=3)
    settings = {"epochs": 10**6, "until": "stop", "worker_timeout": 20.0}
    settings |= {"capacity": 2, "pace": 0.01}
    workers = [
        running.start("worker", 0, TRAIN, steps=50, **settings),
        # Its inbox is full while it waits.
        running.start("worker", 1, TRAIN, steps=5, hold=4, **settings),
        running.start("worker", 2, TRAIN, steps=50, **settings),
    ]
    workers[1].wait_for_steps(4)
    workers[2].wait_for_steps(100)
    workers[2].kill()
    running.tell("go on worker-1")
    workers[0].expect("/job:worker/task:2 is given up")
    workers[1].expect("This replica is now that of /job:worker/task:0")
    running.tell("stop")
    running.finish()
    reports = reports_of(workers[:2])
    check_survivors(reports, 2)
    assert reports[1]["replica"] == reports[0]["replica"]
    lost = "/job:worker/task:2"
    first, second = (report["counts"] for report in reports.values())
    assert first["fetched"][lost] == 0 < second["fetched"][lost]
    assert second["applied"][lost] < first["applied"][lost]


def test_a_message_that_arrives_twice_counts_once(send_twice):
    reports = reports_of(send_twice(TRAIN))
    check_all_is_there(reports)
    assert reports[0]["counts"]["repeated"]["/job:worker/task:1"] > 0
    assert reports[1]["counts"]["duplicates"]["/job:worker/task:0"] > 0


def test_the_chief_s_residual_is_part_of_a_checkpoint(cluster):
    whole, parts = reports_lib.whole_and_parts(
        cluster, "peers.faults:train_saved"
    )
    assert [report["updates"] for report in parts] == [[20], [20]]
    assert any(whole[0]["residual"])
    assert parts[0]["residual"] == whole[0]["residual"]
    # Both have the same weights, whichever they are.
    assert parts[0]["weights"] == parts[1]["weights"]
