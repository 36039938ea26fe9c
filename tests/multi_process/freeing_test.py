"""Models that nobody uses any more, on workers and on servers."""

import pytest

from tests.multi_process.server_recovery_test import go_on

pytestmark = pytest.mark.nightly

STRATEGIES = ("async", "backup", "diloco")
MODELS = 2
WAIT = 120.0


def let_meet(made, workers, name):
    """Lets all workers go on when they have come to `name`."""
    for worker in workers:
        worker.expect(name, WAIT)
    made.tell(name)


def test_nothing_is_left_of_models_that_were_deleted(cluster):
    made = cluster(num_ps=2, num_workers=2)
    made.start_servers()
    workers = made.start_workers(
        "freeing_tasks:one_after_the_other",
        strategies=STRATEGIES,
        models=MODELS,
    )
    for name in STRATEGIES:
        for what in ("trained", *(f"tidy {k}" for k in range(3))):
            let_meet(made, workers, f"{name} is {what}")
    made.finish(WAIT)
    for worker in workers:
        for name, report in worker.report().items():
            # Parameters, statistics and a counter, at least, and signatures.
            assert report["named"] > MODELS * 2 * 7, name
            assert report["left"] == [], name
            assert report["known"] == [], name
            assert report["variables"] == 0, name
            assert report["functions"] < 6, name
    check_counts([worker.report() for worker in workers])


def check_counts(reports):
    """What became of gradients is known after their models are gone."""
    for name in STRATEGIES:
        counts = [report[name]["counts"] for report in reports]
        assert counts[0] == counts[1], name
        for worker, report in enumerate(reports):
            of_worker = counts[0][f"/job:worker/task:{worker}"]
            own = report[name]["own"]
            assert of_worker["pushed"] == own["pushed"] > 0, name
            assert of_worker["dropped"] == own["dropped"], name
            assert own["applied"] == [of_worker["accepted"]] * 2, name
            assert own["lost"] == [0, 0], name
            # With each model there are more.
            pushed = report[name]["pushed"]
            assert pushed == sorted(set(pushed)), name


def start_two_models(made, **arguments):
    """Starts servers, and workers that come to their second models."""
    servers = made.start_servers()
    workers = made.start_workers(
        "freeing_tasks:sums", until="stop", **arguments
    )
    return servers, workers


def check_second_model(reports):
    """Its parameters are minus the updates since it was made."""
    for report in reports:
        for part, server in zip(
            report["parts"], report["placement"], strict=True
        ):
            (value,) = set(part)
            updates = report["updates"][server] - report["before"][server]
            assert value == -1.0 * updates
        assert report["left"] == []


def test_a_server_that_comes_back_holds_what_is_not_freed(cluster):
    made = cluster(num_ps=2, num_workers=2)
    servers, workers = start_two_models(made)
    let_meet(made, workers, "second model")
    go_on(workers)
    for killed in ([0], [0, 1]):
        for index in killed:
            servers[index].kill()
        for index in killed:
            servers[index] = made.start("ps", index, "tasks:serve")
        for worker in workers:
            worker.expect(r"goes on after [\d.]+ s without /job:ps")
        go_on(workers)
    made.tell("stop")
    made.finish()
    check_second_model([w.report() for w in workers])


def test_workers_that_die_hold_nothing_up_and_can_come_back(cluster):
    made = cluster(num_ps=1, num_workers=3)
    made.start_servers(lost_after=15.0)
    stays, comes_back = (
        made.start(
            "worker", k, "freeing_tasks:sums", until="stop", lost_after=15.0
        )
        for k in range(2)
    )
    dies = made.start(
        "worker", 2, "freeing_tasks:sums", until="stop", first=10**6
    )
    for worker in (stays, comes_back):
        worker.expect("first model is trained")
    dies.kill()
    let_meet(made, [stays, comes_back], "second model")
    go_on([stays, comes_back])
    comes_back.kill()
    comes_back = made.start(
        "worker", 1, "freeing_tasks:sums", until="stop", lost_after=15.0
    )
    comes_back.expect("first model is over")
    go_on([stays, comes_back])
    made.tell("stop")
    made.finish()
    reports = [stays.report(), comes_back.report()]
    assert "freed before this worker was started again" in reports[1]["caught"]
    assert reports[0]["parts"] == reports[1]["parts"]
    for report in reports:
        assert report["left"] == []
        assert report["gone"]
