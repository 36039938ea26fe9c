"""The monitor, where a disk is full: training goes on."""

import contextlib

import pytest
import tensorflow as tf

from tests import nightly
from tests.callbacks.monitored import compiled_model
from tests.callbacks.monitored import fit
from tests.callbacks.monitored import rows_of
import tfdist
from tfdist.callbacks import ClusterMonitor
from tfdist.callbacks import cluster_monitor


class FullEvents:
    """Events that do not fit onto the disk.

    Args:
        fails: what finds no room, "begin", "write" or "close".
    """

    def __init__(self, fails):
        self._fails = fails
        self._call("begin")

    def as_default(self, step):
        """Enters a scope of nothing."""
        self._call("write")
        return contextlib.nullcontext()

    def close(self):
        """Ends."""
        self._call("close")

    def _call(self, what):
        if what == self._fails:
            # As TensorFlow does; Keras takes it for the end of the data.
            raise tf.errors.OutOfRangeError(None, None, "No space left")


@pytest.mark.parametrize(
    "fails", nightly.also(["write"], ["close", "begin", "lines"])
)
def test_a_full_disk_does_not_end_training(
    tmp_path, monkeypatch, caplog, fails
):
    monkeypatch.setattr(
        cluster_monitor, "_event_writer", lambda _: FullEvents(fails)
    )
    if fails == "lines":
        (tmp_path / "steps-worker-0.jsonl").symlink_to("/dev/full")
    model = compiled_model(tfdist.AsyncStrategy())
    monitor = ClusterMonitor(tmp_path, every_batches=2)
    losses = fit(model, monitor, batches=5, epochs=2)["loss"]
    assert len(losses) == 2
    assert monitor.summary["gradients_pushed"] == 10
    (error,) = (r.message for r in caplog.records if r.levelname == "ERROR")
    assert f"cannot write to {tmp_path}" in error
    assert "No space left" in error
    if fails != "lines":
        number = {"begin": 0, "write": 2, "close": 10}[fails]
        assert len(rows_of(monitor.jsonl_path)) == number


def test_a_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "runs").touch()
    model = compiled_model(tfdist.AsyncStrategy())
    with pytest.raises(FileExistsError):
        fit(model, ClusterMonitor(tmp_path / "runs"), batches=1)
