"""Real processes and real clusters that teach each other."""

import contextlib
import math
import pathlib
import signal

import pytest

from tests.multi_process.real_cluster import ClusterUnderTest

pytestmark = pytest.mark.nightly


@pytest.fixture
def groups(zygote, tmp_path):
    """Makes clusters of some sizes with directories of their own."""
    with contextlib.ExitStack() as stack:

        def make(*sizes):
            made = []
            for number, counts in enumerate(sizes):
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


def test_a_cluster_and_a_process_exchange_on_disk(groups, tmp_path):
    shared = tmp_path / "shared"
    clusters = groups(
        {"num_ps": 1, "num_workers": 2}, {"num_ps": 0, "num_workers": 1}
    )
    clusters[0].start_servers()
    ours = start(clusters[0], 0, directory=str(shared), in_cluster=True)
    [other] = start(clusters[1], 1, directory=str(shared))
    for process in (*ours, other):
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
    for one in ours:
        one.expect(f"Skipped a checkpoint of group 1 .*{damaged.name}")
        one.wait_for_steps(one.steps() + 20)

    # It comes back, and starts afresh; its peers take it from there.
    [again] = start(clusters[1], 1, directory=str(shared))
    again.expect("received 1")
    for one in ours:
        count = int(one.expect(r"received (\d+)")[1])
        one.expect(f"received {count + 2}")
    for cluster in clusters:
        cluster.tell("stop")
        cluster.finish()

    reports = [one.report() for one in ours]
    for report in reports:
        assert report["skipped"][0][0] == str(damaged)
        assert math.isfinite(report["loss"])
        check_teachers(received(report))
    # Only the chief publishes.
    assert not any("Another process publishes" in o.output() for o in ours)
    check_steps(reports)
    assert again.report()["summary"]["0"]["received"] > 0


def check_teachers(came):
    """Checks what a worker says of teachers that came in two lives."""
    steps = [record["teacher_step"] for record in came]
    # Nobody is taught by a group that has not ended its burn-in.
    assert min(steps) >= 10
    lives = sum(a > b for a, b in zip(steps, steps[1:], strict=False))
    assert lives == 1
    assert all(record["age_seconds"] >= 0 for record in came)


def check_steps(reports):
    """Checks that every step of every worker has become an update."""
    total = sum(report["steps"] for report in reports)
    assert [report["step"] for report in reports] == [total] * len(reports)


def test_two_clusters_exchange_by_their_servers(groups):
    size = {"num_ps": 1, "num_workers": 2}
    clusters = groups(size, size)
    servers = [[cluster.address("ps", 0)] for cluster in clusters]
    workers = []
    for group, cluster in enumerate(clusters):
        cluster.start_servers()
        workers += start(cluster, group, in_cluster=True, servers=servers)
    for worker in workers:
        worker.expect("received 3")

    # A whole group dies in mid-step.
    for task in clusters[1].tasks:
        task.send(signal.SIGKILL)
    for worker in workers[:2]:
        # The first of these may have been under way.
        missed = worker.output().count("missed ")
        worker.expect(f"missed {missed + 2}\n")
        worker.wait_for_steps(worker.steps() + 50)
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
        assert last["problem"]
    check_steps(reports)
