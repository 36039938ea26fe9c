"""Tables on real servers beside synchronous updates of all else.

Every worker's gradient of every row and of the kernel is the same, and divides
by 1, 2 and 3: so each update moves the kernel by it, and so do the rows of all
workers in that update together, however many take part.
"""

import numpy as np
import pytest

from tests.multi_process import table_tasks
from tests.multi_process import tables_test
from tests.waits import wait_until

WORKERS = 3


def start(made, index, **arguments):
    task = "table_tasks:push_in_rounds_until_told"
    return made.start("worker", index, task, **arguments)


def check(report):
    """Checks the kernel, on the first server, and rows without a gradient.

    Returns:
        How much each of the other rows lacks, two arrays: by server.
    """
    updates = report["updates"]
    assert report["iterations"] == updates[0]
    assert report["kernel"] == -table_tasks.GRADIENT * updates[0]
    # In the update of the pull, and in the next one.
    assert max(report["staleness"]) <= 2 * (WORKERS - 1)
    rows = np.array(report["rows"])[:, 0]
    same = np.isin(np.arange(len(rows)), table_tasks.SAME_IDS)
    assert np.all(rows[~same] == 0)
    shard = tables_test.servers_of(np.arange(len(rows)), report["dynamic"])
    return [
        table_tasks.GRADIENT * updates[k] + rows[same & (shard == k)]
        for k in range(2)
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("dynamic", [False, True])
def test_workers_that_are_killed_take_at_most_a_step_of_rows(cluster, dynamic):
    made = cluster(num_ps=2, num_workers=WORKERS)
    made.start_servers()
    others = [start(made, k, dynamic=dynamic) for k in (0, 1)]
    lives = [start(made, 2, dynamic=dynamic)]
    kills = 2
    for kill in range(kills):
        lives[-1].wait_for_steps(5 + 3 * kill)
        lives[-1].kill()
        for other in others:
            other.wait_for_steps(other.steps() + 5)
        lives.append(start(made, 2, dynamic=dynamic))
    lives[-1].wait_for_steps(5)
    made.tell("stop")
    made.finish()
    reports = [task.report() for task in (*others, lives[-1])]
    for report in reports:
        assert len(set(report["updates"])) == 1
        for missing in check(report):
            assert 0 <= missing.min()
            # An update of two was half a killed worker's.
            assert missing.max() <= kills * table_tasks.GRADIENT / 2
        assert report["rows"] == reports[0]["rows"]


@pytest.mark.nightly
def test_a_server_that_was_killed_comes_back_with_its_rows(cluster, tmp_path):
    made = cluster(num_ps=2, num_workers=WORKERS)
    kept = tmp_path / "kept"

    def serve(index):
        return made.start(
            "ps",
            index,
            "recovery_tasks:serve",
            directory=str(kept),
            every=0.3,
        )

    servers = [serve(index) for index in range(2)]
    workers = [start(made, k) for k in range(WORKERS)]
    for worker in workers:
        worker.wait_for_steps(10)
    found = kept.glob("ps-1-of-2/[0-9]*")
    newest = max((int(path.name) for path in found), default=0)
    wait_until(
        lambda: any(
            int(path.name) > newest for path in kept.glob("ps-1-of-2/[0-9]*")
        ),
        "a snapshot of these steps is there",
    )
    servers[1].kill()
    serve(1)
    for worker in workers:
        worker.expect(r"goes on after [\d.]+ s without /job:ps/task:1")
        worker.wait_for_steps(worker.steps() + 10)
    made.tell("stop")
    made.finish()
    for worker in workers:
        report = worker.report()
        (event,) = report["lost_by_rows"]
        least, most = event["/job:ps/task:1"]
        stayed, restored = check(report)
        # Who was in the middle of a step may have lost its rows, or not yet.
        one = table_tasks.GRADIENT
        assert 0 <= stayed.min() and stayed.max() <= one
        assert (least - 1) * one <= restored.min()
        assert restored.max() <= (most + 1) * one
