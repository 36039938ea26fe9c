"""What workers that average in pairs gain and lose, whatever happens."""

import numpy as np
import pytest

from tests.peers import programs

pytestmark = pytest.mark.nightly

TRAIN = "tests.peers.gossip_main:train"
# Float64 rounds by 1e-16 in each of some hundred exchanges; an exchange that
# was lost, or counted twice, moves more than 1e-4.
ROUNDING = {"rtol": 1e-10, "atol": 1e-12}


def reports_of(workers):
    return {k: worker.wait_for_report() for k, worker in enumerate(workers)}


def name_of(worker):
    return f"/job:worker/task:{worker}"


def own_updates(reports):
    """The sum of all updates of the workers, `(2048,)`."""
    return -programs.RATE * sum(
        report["steps"] * programs.gradient(worker).ravel()
        for worker, report in reports.items()
    )


def check_exchanges(reports):
    """Each exchange between two that report is in the accounts of both."""
    for me, report in reports.items():
        for other, theirs in reports.items():
            if other == me:
                continue
            mine = report["counts"][name_of(other)]
            others = theirs["counts"][name_of(me)]
            assert mine["begun"] == mine["ended"] == others["served"]
            assert mine["given_up"] == mine["declined"] == 0
            assert mine["gained"] == pytest.approx(-others["gained"], abs=1e-8)


def check_mean(reports):
    """All have the mean of first values, zeros, and of all updates."""
    check_exchanges(reports)
    mean = own_updates(reports) / len(reports)
    for report in reports.values():
        assert report["after"] == report["replica"] == reports[0]["after"]
        np.testing.assert_allclose(report["after"], mean, **ROUNDING)


def test_four_workers_end_at_the_mean_of_300_steps_each(cluster):
    running = cluster(num_ps=0, num_workers=4)
    workers = running.start_workers(TRAIN, steps=300)
    running.finish()
    check_mean(reports_of(workers))


def check_survivors(reports, lost):
    """They have what they had, their updates, and what the lost one gave."""
    check_exchanges(reports)
    gained, served = 0.0, 0
    for report in reports.values():
        counts = report["counts"][name_of(lost)]
        # Of the one under way when it was lost nothing has been taken.
        assert counts["begun"] == counts["ended"] + counts["given_up"]
        assert counts["given_up"] <= 1
        served += counts["served"]
        gained += counts["gained"]
        assert report["after"] == report["replica"] == reports[0]["after"]
    assert served > 0
    total = sum(np.sum(report["after"]) for report in reports.values())
    expected = own_updates(reports).sum() + gained
    np.testing.assert_allclose(total, expected, rtol=1e-9)


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
    steps = [worker.steps() for worker in workers[:2]]
    for worker, before in zip(workers[:2], steps, strict=True):
        worker.wait_for_steps(before + 50)
    running.tell("stop")
    running.finish()
    check_survivors(reports_of(workers[:2]), 2)


def test_a_worker_that_takes_no_steps_is_given_up(cluster):
    running = cluster(num_ps=0, num_workers=2)
    workers = [
        running.start(
            "worker", k, TRAIN, steps=60, hold=hold, stall_timeout=4.0
        )
        for k, hold in enumerate((None, 20))
    ]
    workers[0].expect("/job:worker/task:1 is given up")
    reports = {0: workers[0].wait_for_report()}
    running.tell("go on worker-1")
    assert "was given up by" in workers[1].wait_for_report()["error"]
    check_survivors(reports, 1)


def test_the_chief_that_was_killed_joins_again(cluster):
    killed = 0
    running = cluster(num_ps=0, num_workers=3)
    settings = {"steps": 10**6, "pace": 0.005, "until": "stop"}
    workers = dict(enumerate(running.start_workers(TRAIN, **settings)))
    for worker in workers.values():
        worker.wait_for_steps(20)
    workers[killed].kill()
    before = workers[killed].steps()
    workers[killed] = running.start("worker", killed, TRAIN, **settings)
    workers[killed].wait_for_steps(before + 60)
    running.tell("stop")
    running.finish()
    reports = {k: worker.report() for k, worker in workers.items()}
    for report in reports.values():
        assert report["after"] == report["replica"] == reports[0]["after"]
    assert np.isfinite(reports[0]["after"]).all()
    joiner = reports.pop(killed)["counts"]
    check_exchanges(reports)
    for k, report in reports.items():
        counts = report["counts"][name_of(killed)]
        assert counts["begun"] == counts["ended"] + counts["given_up"]
        # With both processes.
        theirs = joiner[name_of(k)]
        assert theirs["begun"] == theirs["ended"] <= counts["served"]
        assert 0 < theirs["served"] <= counts["ended"]
