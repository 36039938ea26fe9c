"""Servers that are killed and come back, in the middle of `fit`."""

import collections
import re

import pytest

from tests.multi_process.server_failure_test import check_exact
from tests.multi_process.server_failure_test import start_training
from tests.waits import wait_until


def go_on(workers, steps=15):
    """Waits until all workers have made more steps."""
    for worker, number in [(w, w.steps()) for w in workers]:
        worker.wait_for_steps(number + steps)


def check_restored(workers, kills):
    """All lost servers were restored; if again, then from newer replicas.

    A worker that notices late, and has pulled more than the one that has
    restored the server meanwhile, restores it once more.
    """
    expected = collections.Counter()
    events = [
        collections.deque(worker.report()["recoveries"]) for worker in workers
    ]
    for killed in kills:
        lost = {f"/job:ps/task:{index}" for index in killed}
        restored = set()
        for of_worker in events:
            # It may miss one server after the other, though both were killed.
            missed = set()
            while missed != lost:
                servers, by_it = of_worker.popleft()
                assert set(servers) <= lost
                missed.update(servers)
                restored.update(by_it)
                expected.update(by_it)
        assert restored == lost
    assert not any(events)
    told = [
        found
        for worker in workers
        for found in re.findall(
            r"restored (\S+), .* as of update (\d+)", worker.output()
        )
    ]
    assert collections.Counter(name for name, _ in told) == expected
    assert len(set(told)) == len(told)


@pytest.mark.smoke
def test_servers_are_restored_from_the_newest_replica(cluster):
    made = cluster(num_ps=2, num_workers=2)
    servers, workers = start_training(made)
    kills = ([1], [0], [0, 1])
    for killed in kills:
        for index in killed:
            servers[index].kill()
        for index in killed:
            servers[index] = made.start("ps", index, "tasks:serve")
        for worker in workers:
            worker.expect(r"goes on after [\d.]+ s without /job:ps")
        go_on(workers)
    made.tell("stop")
    made.finish()
    check_exact([worker.report() for worker in workers])
    check_restored(workers, kills)


@pytest.mark.nightly
@pytest.mark.parametrize(("index", "num_ps", "hold"), [(0, 2, 0), (1, 1, 70)])
def test_a_worker_that_died_with_the_first_server_goes_on_where_it_was(
    cluster, index, num_ps, hold
):
    """The other one tells the new server where that was.

    Also if it does something else meanwhile.
    """
    made = cluster(num_ps=num_ps, num_workers=2)
    training = {"steps_per_epoch": 20, "epochs": 10**6, "hold": hold}
    servers, workers = start_training(made, pace=0.05, **training)
    for worker in workers:
        worker.wait_for_steps(70)
    servers[0].kill()
    workers[index].kill()
    made.start("ps", 0, "tasks:serve")
    again = made.start(
        "worker",
        index,
        "failure_tasks:train",
        value=1.0,
        until="stop",
        pace=0.05,
        **training,
    )
    # Where the other one holds, it tells with a heartbeat alone.
    first = again.expect(r"begins epoch (\d+)")
    made.tell("go on")
    workers[1 - index].expect(r"goes on after [\d.]+ s without /job:ps")
    assert int(first[1]) >= 2
    again.wait_for_steps(5)
    made.tell("stop")
    made.finish()


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["backup", "diloco"])
def test_methods_go_on_with_their_state(cluster, tmp_path, strategy):
    made = cluster(num_ps=2, num_workers=2)
    kept = {"directory": str(tmp_path / "kept"), "every": 0.3}
    servers = [
        made.start("ps", index, "recovery_tasks:serve", **kept)
        for index in range(2)
    ]
    workers = made.start_workers(
        "recovery_tasks:train", strategy=strategy, rate=0.02
    )
    for index in range(2):
        go_on(workers, 30)
        written = tmp_path / "kept" / f"ps-{index}-of-2"
        wait_until(
            lambda written=written: list(written.glob("[0-9]*")),
            "there is a snapshot",
        )
        servers[index].kill()
        servers[index] = made.start("ps", index, "recovery_tasks:serve", **kept)
        # Slots are those of the snapshot.
        servers[index].expect("begins with its snapshot")
        for worker in workers:
            worker.expect(r"goes on after [\d.]+ s without /job:ps")
    go_on(workers, 60)
    made.tell("stop")
    made.finish()
    reports = [worker.report() for worker in workers]
    for report in reports:
        assert report["after"] < 0.5 * report["before"]
        counts = report["counts"]
        for applied, lost in zip(
            counts["applied"], counts["lost"], strict=True
        ):
            assert counts["pushed"] == applied + counts["dropped"] + lost
            assert 0 <= lost <= len(report["recoveries"])
        assert len(report["recoveries"]) == 2
        for of_worker in report["all_counts"].values():
            assert (
                of_worker["pushed"]
                == of_worker["accepted"] + of_worker["dropped"]
            )
    assert reports[0]["weights"] == reports[1]["weights"]
    # Training is over: nothing is kept.
    assert list((tmp_path / "kept").iterdir()) == []
