"""Workers that come while others train: each update counts once on each."""

import numpy as np
import pytest

from tests.peers import sums

pytestmark = pytest.mark.nightly

TRAIN = "tests.peers.faults:train"
THRESHOLD = "threshold(tau=0.0625)"


def check_accounts(reports):
    """Of each pair the sender and the receiver count the same updates."""
    for me, report in reports.items():
        counts = report["counts"]
        for other, theirs in reports.items():
            if other == me:
                continue
            name = f"/job:worker/task:{other}"
            mine = f"/job:worker/task:{me}"
            came = counts["fetched"][name] + counts["applied"][name]
            assert came == theirs["counts"]["sent"], (me, other)
            assert counts["missed"][name] == 0
            sent = theirs["counts"]["before"][mine]
            sent += theirs["counts"]["delivered"][mine]
            assert sent == theirs["counts"]["sent"], (me, other)


def test_a_worker_joins_and_all_end_at_the_sum(cluster):
    running = cluster(num_ps=0, num_workers=3)
    settings = {
        "compression": THRESHOLD,
        "warmup_peers": 2,
        "pace": 0.005,
        "until": "stop",
    }
    workers = [
        running.start("worker", k, TRAIN, steps=10**6, **settings)
        for k in range(2)
    ]
    for worker in workers:
        worker.wait_for_steps(30)
    workers.append(running.start("worker", 2, TRAIN, steps=10**6, **settings))
    workers[2].wait_for_steps(40)
    running.tell("stop")
    running.finish()
    reports = {k: worker.report() for k, worker in enumerate(workers)}
    assert min(reports[2]["counts"]["fetched"].values()) >= 20
    check_accounts(reports)
    expected = sums.sum_of(reports).tolist()
    for report in reports.values():
        assert report["replica"] == expected
        assert report["after"] == expected


def test_two_workers_join_one_after_the_other(cluster):
    """Neither gives up the other one."""
    running = cluster(num_ps=0, num_workers=4)
    settings = {"warmup_peers": 2, "pace": 0.005, "until": "stop"}
    workers = running.start_workers(TRAIN, steps=10**6, **settings)
    for worker in workers:
        worker.wait_for_steps(40)
    running.tell("stop")
    running.finish()
    reports = {k: worker.report() for k, worker in enumerate(workers)}
    check_accounts(reports)
    expected = sums.sum_of(reports).tolist()
    for report in reports.values():
        assert report["replica"] == report["after"] == expected


def test_a_first_worker_joins_again_those_that_have_joined(cluster):
    """Also where all meet before `fit`."""
    running = cluster(num_ps=0, num_workers=3)
    settings = {"warmup_peers": 2, "pace": 0.005, "until": "stop"}
    settings["meets"] = True
    workers = running.start_workers(TRAIN, steps=10**6, **settings)
    workers[2].wait_for_steps(20)
    workers[0].kill()
    before = workers[0].steps()
    workers[0] = running.start("worker", 0, TRAIN, steps=10**6, **settings)
    workers[0].wait_for_steps(before + 40)
    running.tell("stop")
    running.finish()
    check_accounts({k: worker.report() for k, worker in enumerate(workers)})


def test_a_worker_that_was_killed_needs_nobody_else_who_was(cluster):
    running = cluster(num_ps=0, num_workers=3)
    settings = {"pace": 0.005, "until": "stop", "worker_timeout": 5.0}
    workers = running.start_workers(TRAIN, steps=10**6, **settings)
    for worker in workers:
        worker.wait_for_steps(20)
    for worker in workers[1:]:
        worker.kill()
    before = workers[1].steps()
    workers[1] = running.start("worker", 1, TRAIN, steps=10**6, **settings)
    workers[1].wait_for_steps(before + 40)
    running.tell("stop")
    running.finish()
    reports = [worker.report() for worker in workers[:2]]
    assert reports[0]["after"] == reports[1]["after"]


@pytest.mark.parametrize("killed", [2, 0])
def test_a_worker_that_was_killed_joins_again(cluster, killed):
    running = cluster(num_ps=0, num_workers=3)
    settings = {"pace": 0.005, "until": "stop", "compression": THRESHOLD}
    workers = dict(
        enumerate(running.start_workers(TRAIN, steps=10**6, **settings))
    )
    for worker in workers.values():
        worker.wait_for_steps(20)
    workers[killed].kill()
    before = workers[killed].steps()
    workers[killed] = running.start(
        "worker", killed, TRAIN, steps=10**6, **settings
    )
    workers[killed].wait_for_steps(before + 40)
    running.tell("stop")
    running.finish()
    reports = {k: worker.report() for k, worker in workers.items()}
    check_accounts(reports)
    # What survivors have of the process that was killed may differ; its
    # residual is gone, so that its updates are known from a replica alone.
    name = f"/job:worker/task:{killed}"
    for k, report in reports.items():
        assert report["after"] == reports[min(reports)]["after"]
        if k != killed:
            assert report["counts"]["earlier"][name] > 0
        # All know of each replica which updates it is the sum of.
        assert "not the sum of its updates" not in workers[k].output()
    assert np.isfinite(reports[0]["after"]).all()
