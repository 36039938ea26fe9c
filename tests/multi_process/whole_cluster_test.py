"""All processes of a cluster are killed, and the job is started again."""

import json
import signal

import pytest
import tensorflow as tf

from tests.multi_process.server_recovery_test import go_on
from tests.waits import wait_until

pytestmark = pytest.mark.nightly

_EVERY = 0.5


def newest(directory):
    """The newest snapshot of a server and its number, -1 if there is none."""
    paths = (p for p in directory.glob("*") if p.name.isdigit())
    path = max(paths, default=None)
    return path, -1 if path is None else int(path.name)


def version_in(snapshot):
    """Updates that a server had applied when it wrote a snapshot."""
    meta = json.loads((snapshot / "meta.json").read_text())
    ((name, *_),) = meta["groups"].values()
    (version,) = tf.raw_ops.RestoreV2(
        prefix=str(snapshot / "data"),
        tensor_names=[name],
        shape_and_slices=[""],
        dtypes=[tf.int64],
    )
    return int(version)


class Job:
    """Servers with snapshots, and workers that train."""

    def __init__(self, made, task, **arguments):
        """Starts them.

        Args:
            made: a `ClusterUnderTest`.
            task: what workers do.
            **arguments: of that.
        """
        self.made = made
        kept = made.directory / "kept"
        self.directories = [kept / f"ps-{k}-of-2" for k in range(2)]
        self.servers = [
            made.start(
                "ps",
                index,
                "recovery_tasks:serve",
                directory=str(kept),
                every=_EVERY,
            )
            for index in range(2)
        ]
        self.workers = made.start_workers(task, pace=0.005, **arguments)
        go_on(self.workers, 20)

    def steps(self):
        """Steps that all workers have told of."""
        return sum(worker.steps() for worker in self.workers)

    def wait_for_snapshots(self):
        """Waits until each server has read for another one, and written it."""
        wanted = [newest(d)[1] + 2 for d in self.directories]
        wait_until(
            lambda: all(
                newest(d)[1] >= number
                for d, number in zip(self.directories, wanted, strict=True)
            ),
            f"snapshots {wanted} are there",
        )

    def kill(self):
        """Kills all as the loss of power would, and waits for the ends."""
        tasks = [*self.servers, *self.workers]
        for task in tasks:
            assert task.runs(), task.output()
            task.send(signal.SIGKILL)
        for task in tasks:
            assert task.wait() == -signal.SIGKILL


def test_a_job_that_is_started_again_goes_on_from_the_snapshots(cluster):
    task, arguments = "failure_tasks:train", {"value": 1.0, "until": "stop"}
    first = Job(cluster(num_ps=2, num_workers=2), task, **arguments)
    made_before = first.steps()
    first.wait_for_snapshots()
    first.kill()
    held = [version_in(newest(d)[0]) for d in first.directories]
    # What was done a snapshot's time ago is there; the rest is lost.
    assert min(held) >= made_before

    second = Job(first.made, task, **arguments)
    for server in second.servers:
        server.expect("begins with its snapshot")
    second.made.tell("stop")
    second.made.finish()
    reports = [worker.report() for worker in second.workers]
    for server, version in enumerate(held):
        applied = [r["counts"]["applied"][server] for r in reports]
        for report in reports:
            assert report["updates"][server] == version + sum(applied)
            assert report["versions"][0] > held[0]
            assert not any(report["counts"]["lost"])
    for report in reports:
        for part, server in zip(
            report["parts"], report["placement"], strict=True
        ):
            assert set(part) == {-1.0 * report["updates"][server]}
    # Training is over: nothing is kept.
    assert list((second.made.directory / "kept").iterdir()) == []


# Strategy, and what workers have not told of when servers write: all variables,
# and what a ledger needs. With some variables: `first_values_test`.
EARLY = {
    "with nothing else": ("async", r"/(variable|signature|gradients|held)"),
    "without a ledger": ("backup", r"/ledger/.*/(state|epoch|incarnations)$"),
}


@pytest.mark.parametrize("missing", EARLY)
def test_what_an_early_snapshot_lacks_is_added(cluster, missing):
    """Servers write before heartbeats have told them of all that there is."""
    strategy, untold = EARLY[missing]
    first = Job(
        cluster(num_ps=2, num_workers=2),
        "recovery_tasks:train",
        strategy=strategy,
        rate=0.01,
        untold=untold,
    )
    first.wait_for_snapshots()
    first.kill()
    held = [version_in(newest(d)[0]) for d in first.directories]
    assert min(held) > 0

    second = Job(
        first.made, "recovery_tasks:train", strategy=strategy, rate=0.01
    )
    for server in second.servers:
        server.expect("begins with its snapshot")
    second.made.tell("stop")
    second.made.finish()
    said = [
        "lacked" in worker.output().split("connected")[-1]
        for worker in second.workers
    ]
    assert any(said) == (missing != "without a ledger")
    reports = [worker.report() for worker in second.workers]
    assert reports[0]["weights"] == reports[1]["weights"]
    for server, version in enumerate(held):
        applied = [r["counts"]["applied"][server] for r in reports]
        assert min(applied) > 0
        for report in reports:
            assert report["updates"][server] == version + sum(applied)
            assert not any(report["counts"]["lost"])
