"""A worker that one server cannot be reached by, and all others can."""

import pytest

from tests.multi_process.link import Link
from tests.multi_process.server_failure_test import check_exact
from tests.multi_process.server_failure_test import names

pytestmark = pytest.mark.nightly


def test_a_worker_that_is_cut_from_one_server_goes_on_when_it_is_healed(
    cluster,
):
    made = cluster(num_ps=2, num_workers=2)
    made.start_servers()
    there = [made.address("ps", index) for index in range(2)]
    by_the_link = made.another_address()
    train = {"value": 1.0, "until": "stop"}
    with Link(by_the_link, there[1]) as link:
        cut_off = made.start_by_other_ways(
            "worker",
            0,
            {"ps": [there[0], by_the_link]},
            "failure_tasks:train",
            **train,
        )
        going = made.start("worker", 1, "failure_tasks:train", **train)
        for worker in (cut_off, going):
            worker.wait_for_steps(5)
        link.cut()
        cut_off.expect(rf"No answer from parameter server {names(1)}")
        at = cut_off.steps()
        # The other one trains on, with both servers.
        going.wait_for_steps(going.steps() + 50)
        assert cut_off.steps() == at
        link.heal()
        # The server has lived on, and holds what it held.
        cut_off.expect(r"goes on after [\d.]+ s\.")
        for worker in (cut_off, going):
            worker.wait_for_steps(worker.steps() + 10)
        made.tell("stop")
        made.finish()
    reports = [worker.report() for worker in (cut_off, going)]
    check_exact(reports)
    assert reports[0]["recoveries"] and not reports[1]["recoveries"]
    assert all(not servers for servers, _ in reports[0]["recoveries"])
