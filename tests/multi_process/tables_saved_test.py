"""A server is killed while the chief reads a table's rows to write them."""

import json

import numpy as np
import pytest

from tests.multi_process import table_tasks
from tests.multi_process.server_recovery_test import go_on
from tfdist.callbacks import checkpoint_files
from tfdist.runtime.checkpoint import table_chunks
from tfdist.runtime.variables.partitions import Partitions

pytestmark = pytest.mark.nightly

_PIECES = 6
_CHUNKS = 64


class Scene:
    """Two servers, and two workers that train, of which the first saves."""

    def __init__(self, made, server_timeout=60.0):
        self.made = made
        self.servers = [self.start_server(index) for index in range(2)]
        self.workers = made.start_workers(
            "table_tasks:save_when_told", server_timeout=server_timeout
        )
        go_on(self.workers, 5)

    def start_server(self, index):
        """Starts a server."""
        return self.made.start(
            "ps",
            index,
            "recovery_tasks:serve",
            directory=str(self.made.directory / "kept"),
            every=0.2,
        )

    def begin(self, action):
        """The chief begins to export or to save."""
        self.made.tell(action)
        self.workers[0].expect(f"about to {action}")
        self.made.tell(f"{action} now")

    def do(self, action):
        """The chief exports or saves."""
        self.begin(action)
        self.workers[0].expect(f"over: {action}")

    def kill_server_in(self, action):
        """The chief has read some rows, and is about to read the next."""
        self.made.tell("halt")
        self.begin(action)
        self.workers[0].expect("halted")
        self.servers[0].kill()
        self.made.tell("go on")


def exported(directory):
    """All rows of the table that was exported, `(ROWS, WIDTH)`."""
    index = json.loads((directory / "index.json").read_text())
    (table,) = index["tables"]
    assert len(table["pieces"]) == _PIECES
    # Nothing else is left there.
    assert len(list(directory.iterdir())) == 1 + _PIECES
    return np.concatenate(
        [np.load(directory / piece["file"]) for piece in table["pieces"]]
    )


def saved(directory):
    """By number of a checkpoint, all rows in it, in any order."""
    files = checkpoint_files.CheckpointFiles(
        directory, 3, lazy=table_chunks.PREFIX
    )
    assert len(list(directory.iterdir())) == len(files.numbers())
    found = {}
    for number in files.numbers():
        there, state = files.newest(number)
        assert there == number
        chunks = [
            np.asarray(array)
            for name, array in state.arrays.items()
            if name.startswith(table_chunks.PREFIX)
        ]
        assert len(chunks) == _CHUNKS
        found[number] = np.concatenate(chunks)
    return found


def check_rows(rows, updates):
    """Rows are of some time in the training; those not killed are there.

    Args:
        rows: minus the updates that are in each row.
        updates: how many there have been, at most.
    """
    assert np.all((0 <= -rows) & (-rows <= updates))
    assert np.all(rows == np.round(rows))
    trained = np.count_nonzero(rows.any(axis=1))
    ids = table_tasks.SAME_IDS
    shard, _ = Partitions(table_tasks.ROWS, 2).place(ids)
    assert np.count_nonzero(shard) <= trained <= len(ids)


@pytest.mark.parametrize("action", ["export", "save"])
def test_a_server_that_returns_holds_up_what_is_written(cluster, action):
    scene = Scene(cluster(num_ps=2, num_workers=2))
    scene.do(f"{action} 0")
    scene.kill_server_in(f"{action} 1")
    scene.servers[0] = scene.start_server(0)
    scene.workers[0].expect(f"over: {action} 1")
    go_on(scene.workers)
    scene.made.tell("stop")
    scene.made.finish()
    updates = max(scene.workers[0].report()["updates"])
    found = saved(scene.made.directory / "checkpoints")
    # One is of the end.
    assert len(found) == (3 if action == "save" else 1)
    if action == "export":
        found["export"] = exported(scene.made.directory / "exported")
    for rows in found.values():
        check_rows(rows, updates)


@pytest.mark.parametrize("action", ["export", "save"])
def test_a_server_that_is_gone_leaves_what_was_there(cluster, action):
    scene = Scene(cluster(num_ps=2, num_workers=2), server_timeout=6.0)
    scene.do(f"{action} 0")
    read = {
        "export": lambda: exported(scene.made.directory / "exported"),
        "save": lambda: saved(scene.made.directory / "checkpoints")[1],
    }[action]
    before = read()
    check_rows(before, 10**6)
    scene.kill_server_in(f"{action} 1")
    for worker in scene.workers:
        assert worker.wait() != 0
        report = worker.report()
        assert report["error"] == "TimeoutError"
        assert "/job:ps/task:0" in report["message"]
    # It is an error where rows are read, not a disk that is full.
    assert "No checkpoint could be written" not in scene.workers[0].output()
    np.testing.assert_array_equal(read(), before)
