"""Heartbeats of workers without servers."""

import queue
import threading
import types

import pytest
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.cluster import ClusterConfig
from tfdist.cluster import peers
from tfdist.cluster import versions
from tfdist.cluster import waiting


@pytest.fixture
def of_two(monkeypatch):
    """The `Peers` of worker 0, with quick heartbeats."""
    monkeypatch.setattr(peers, "_BEAT_SECONDS", 0.01)
    monkeypatch.setattr(
        private_tensorflow, "abort_collectives", lambda code, message: None
    )
    addresses = ["localhost:1", "localhost:2"]
    made = peers.Peers(ClusterConfig({"worker": addresses}, "worker", 0))
    yield made
    made.leave()


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)
def test_an_error_of_what_watches_does_not_end_the_heartbeats(
    of_two, monkeypatch
):
    looks = []

    class Raises:
        def look(self):
            looks.append(1)
            raise RuntimeError("a test")

    def check(task, seconds):
        if len(looks) > 1:
            raise tf.errors.FailedPreconditionError(None, None, "new")

    monkeypatch.setattr(private_tensorflow, "check_peer", check)
    watched = Raises()
    of_two.watching.add(watched)
    of_two.look_after(5.0)
    assert "worker/task:1 at localhost:2 was started" in of_two.lost_worker()


def test_no_thread_waits_long_for_the_answer_of_another_worker(
    of_two, monkeypatch
):
    """TensorFlow keeps the interpreter's lock meanwhile."""
    asked = queue.Queue()
    answers = threading.Semaphore(0)

    def check(task, seconds):
        asked.put(seconds)
        answers.acquire(timeout=60.0)
        raise tf.errors.DeadlineExceededError(None, None, "silent")

    monkeypatch.setattr(private_tensorflow, "check_peer", check)
    of_two.look_after(100.0)
    # Not that long, as long as no collective has failed.
    assert asked.get(timeout=60.0) == 1.0
    lost = []
    main = threading.Thread(target=lambda: lost.append(of_two.lost_worker()))
    main.start()
    waiting.wait_until(
        lambda: of_two._has_failed, what="the main thread", timeout=60.0
    )
    answers.release(2)
    main.join(60.0)
    assert "worker/task:1 at localhost:2 is gone" in lost[0]


def test_sums_end_with_an_error_once_one_waits_for_a_worker_that_is_gone(
    of_two, monkeypatch
):
    """TensorFlow logs an error: not of workers whose training is over."""
    ended = queue.Queue()
    looks = threading.Semaphore(0)

    class Sums:
        is_under_way = False

        def look(self):
            looks.release()
            return self.is_under_way

    def check(task, seconds):
        raise tf.errors.FailedPreconditionError(None, None, "new")

    monkeypatch.setattr(private_tensorflow, "check_peer", check)
    monkeypatch.setattr(
        private_tensorflow,
        "abort_collectives",
        lambda code, message: ended.put(message),
    )
    sums = Sums()
    of_two.watching.add(sums)
    of_two.look_after(5.0)
    for _ in range(3):
        assert looks.acquire(timeout=60.0)
    assert ended.empty()
    assert "worker/task:1 at localhost:2 was started" in of_two.lost_worker()
    sums.is_under_way = True
    assert "worker/task:1 at localhost:2" in ended.get(timeout=60.0)


def test_the_doctor_learns_which_versions_a_worker_without_servers_runs(
    monkeypatch,
):
    here = "/job:localhost/replica:0/task:0/device:CPU:0"
    monkeypatch.setattr(versions, "_device", lambda job, task: here)
    nothing = types.SimpleNamespace(
        enable_collectives=lambda definition: None,
        start_runtime=lambda config: None,
        warn_of_port=lambda config: None,
    )
    monkeypatch.setattr(peers, "private_tensorflow", nothing)
    monkeypatch.setattr(peers, "connection", nothing)

    def wait_for_listeners(kind, addresses, timeout):
        raise TimeoutError("The other one never comes.")

    nothing.wait_for_listeners = wait_for_listeners
    config = ClusterConfig(
        {"worker": ["localhost:1", "localhost:2"]}, "worker", 0
    )
    with pytest.raises(TimeoutError, match="never comes"):
        peers.Peers(config).start(1.0)
    with tf.device(here):
        told = versions.parse(versions.build_read().numpy())
    assert told["cluster"] == config.fingerprint
    assert versions.differences(told) == []
