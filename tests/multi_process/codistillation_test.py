"""Real processes and real clusters that teach each other."""

import contextlib
import math
import pathlib
import signal

import pytest

from tests.multi_process.real_cluster import ClusterUnderTest


@pytest.fixture
def groups(zygote, tmp_path):
    """Makes two clusters with directories of their own."""
    with contextlib.ExitStack() as stack:

        def make(**counts):
            made = []
            for number in range(2):
                directory = tmp_path / f"{number}"
                directory.mkdir()
                made.append(
                    stack.enter_context(
                        ClusterUnderTest(zygote, directory, **counts)
                    )
                )
            return made

        yield make


def start(cluster, group, **arguments):
    """Starts the workers of a group."""
    return cluster.start_workers(
        "codistillation_tasks:train", group=group, num_groups=2, **arguments
    )


def received(report):
    return [r for r in report["records"] if "teacher_step" in r]


def test_two_processes_exchange_on_disk(groups, tmp_path):
    shared = tmp_path / "shared"
    clusters = groups(num_ps=0, num_workers=1)
    [one], [other] = (
        start(cluster, group, directory=str(shared))
        for group, cluster in enumerate(clusters)
    )
    for process in (one, other):
        process.expect("received 3")
    other.kill()

    # What a machine that lost power may leave behind.
    theirs = shared / "group-1"
    newest = max(theirs.glob("checkpoint-*"))
    number = int(newest.name.split("-")[1]) + 1
    damaged = theirs / f"checkpoint-{number:08d}-step-1000000.npz"
    draft = pathlib.Path(tmp_path / "draft")
    draft.write_bytes(newest.read_bytes()[:-50])
    draft.rename(damaged)
    one.expect(f"Skipped a checkpoint of group 1 .*{damaged.name}")
    one.wait_for_steps(one.steps() + 20)

    # It comes back, and begins anew; its peer takes it from there.
    [again] = start(clusters[1], 1, directory=str(shared))
    again.expect("received 1")
    count = int(one.expect(r"received (\d+)")[1])
    one.expect(f"received {count + 2}")
    for cluster in clusters:
        cluster.tell("stop")
        cluster.finish()

    report = one.report()
    assert report["skipped"][0][0] == str(damaged)
    assert math.isfinite(report["loss"])
    came = received(report)
    steps = [record["teacher_step"] for record in came]
    # Nobody is taught by a group that has not ended its burn-in.
    assert min(steps) >= 10
    lives = sum(a > b for a, b in zip(steps, steps[1:], strict=False))
    assert lives == 1
    assert all(0 <= record["age_seconds"] < 60 for record in came)
    assert again.report()["summary"]["0"]["received"] > 0


@pytest.mark.parametrize("exchange", ["directory", "servers"])
def test_two_clusters_exchange(groups, tmp_path, exchange):
    clusters = groups(num_ps=1, num_workers=2)
    arguments = {"directory": str(tmp_path / "shared")}
    if exchange == "servers":
        addresses = [[cluster.address("ps", 0)] for cluster in clusters]
        arguments = {"servers": addresses}
    workers = []
    for group, cluster in enumerate(clusters):
        cluster.start_servers()
        workers += start(cluster, group, in_cluster=True, **arguments)
    for worker in workers:
        worker.expect("received 3")

    # A whole group dies in mid-step.
    for task in clusters[1].tasks:
        task.send(signal.SIGKILL)
    before = [worker.steps() for worker in workers[:2]]
    for worker, steps in zip(workers[:2], before, strict=True):
        worker.wait_for_steps(steps + 50)
    clusters[0].tell("stop")
    clusters[0].finish()

    reports = [worker.report() for worker in workers[:2]]
    for report in reports:
        assert len(received(report)) >= 3
        assert report["summary"]["1"]["step"] >= 10
        assert math.isfinite(report["loss"])
        assert math.isfinite(report["evaluated"])
        last = report["records"][-1]
        assert "teacher_step" not in last
        assert bool(last["problem"]) == (exchange == "servers")
    # Every step of every worker has become an update.
    total = sum(report["steps"] for report in reports)
    assert [report["step"] for report in reports] == [total] * 2
