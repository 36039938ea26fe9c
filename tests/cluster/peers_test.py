"""Heartbeats of workers without servers."""

import pytest
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.cluster import ClusterConfig
from tfdist.cluster import peers


@pytest.fixture
def of_two(monkeypatch):
    """The `Peers` of worker 0, which watches an object that raises."""
    looks = []

    class Raises:
        def look(self):
            looks.append(1)
            raise RuntimeError("a test")

    def check(task, seconds):
        if len(looks) > 1:
            raise tf.errors.FailedPreconditionError(None, None, "new")

    monkeypatch.setattr(peers, "_BEAT_SECONDS", 0.01)
    monkeypatch.setattr(private_tensorflow, "check_peer", check)
    monkeypatch.setattr(
        private_tensorflow, "abort_collectives", lambda code, message: None
    )
    addresses = ["localhost:1", "localhost:2"]
    made = peers.Peers(ClusterConfig({"worker": addresses}, "worker", 0))
    watched = Raises()
    made.watching.add(watched)
    yield made
    made.leave()


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)
def test_an_error_of_what_watches_does_not_end_the_heartbeats(of_two):
    of_two.look_after(5.0)
    assert "worker/task:1 at localhost:2 was started" in of_two.lost_worker()
