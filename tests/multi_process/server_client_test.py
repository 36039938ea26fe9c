"""Calls of any thread on a server that hangs, dies and comes back."""

import signal
import threading

import pytest
import tensorflow as tf

from tfdist.cluster import incarnation
from tfdist.cluster import server_client
from tfdist.cluster import sessions
from tfdist.cluster import waiting

pytestmark = pytest.mark.nightly

COUNTER = "server_client_test/counter"

SILENT = (tf.errors.DeadlineExceededError, tf.errors.UnavailableError)


def build_count(amount):
    """Adds to a counter on the server, gives what it was."""
    handle = tf.raw_ops.VarHandleOp(
        dtype=tf.int64, shape=[], shared_name=COUNTER
    )
    known = tf.raw_ops.VarIsInitializedOp(resource=handle)

    def read():
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)
        return tf.ensure_shape(value, [])

    before = tf.cond(known, read, lambda: tf.zeros([], tf.int64))
    tf.raw_ops.AssignVariableOp(resource=handle, value=before + amount)
    return [before]


def counting(client, any_life=False):
    """A function of its own that counts."""
    signature = [tf.TensorSpec([], tf.int64)]
    function = client.function(build_count, signature, any_life)
    return lambda amount: int(function(amount)[0])


def serve(made):
    server = made.start("ps", 0, "tasks:serve")
    server.expect("serves on port")
    return server


def test_a_server_that_hangs_is_waited_for_in_time(cluster, monkeypatch):
    made = cluster(num_ps=1, num_workers=1)
    server = serve(made)
    client = server_client.ServerClient(made.address("ps", 0), 0)
    one, another = counting(client), counting(client)
    # All functions, and the sessions of each, share what is on the server.
    assert [one(1), another(10), one(100)] == [0, 1, 11]
    monkeypatch.setattr(server_client, "SECONDS", 1.0)
    server.send(signal.SIGSTOP)
    with pytest.raises(SILENT):
        one(0)
    server.send(signal.SIGCONT)
    monkeypatch.undo()
    assert another(0) == 111
    client.close()
    assert one(0) == 111
    # What killed processes have left open is ended with all the others.
    sessions.end_all(made.address("ps", 0))
    assert [one(1), another(0)] == [111, 112]


def test_a_server_in_another_life_is_not_called_before_it_is_known(
    cluster, monkeypatch
):
    """What it has lost is put back first, by whoever connects to it.

    Only what needs nothing of it does not wait for that.
    """
    made = cluster(num_ps=1, num_workers=1)
    server = serve(made)
    address = made.address("ps", 0)
    client = server_client.ServerClient(address, 0)
    count, beat = counting(client), counting(client, any_life=True)
    assert [count(1), count(1), beat(1)] == [0, 1, 2]
    server.kill()
    with monkeypatch.context() as patch:
        patch.setattr(server_client, "SECONDS", 1.0)
        with pytest.raises(SILENT):
            count(1)
    serve(made)
    for beats in range(2):
        assert beat(1) == beats
        with pytest.raises(tf.errors.AbortedError, match="was started again"):
            count(1)
    client.reconnected(address)
    assert [count(1), count(1), beat(1)] == [2, 3, 4]
    # Nobody waits for the end of what was open where the server is no more.
    goes_on, waited = threading.Event(), []
    monkeypatch.setattr(
        sessions, "close", lambda *args: waited.append(goes_on.wait(60))
    )
    client.reconnected("localhost:1")
    with pytest.raises(tf.errors.UnavailableError, match="localhost:1"):
        count(1)
    goes_on.set()
    waiting.wait_until(lambda: waited, what="its end", timeout=60.0)
    assert waited == [True]


def test_servers_are_not_looked_for_behind_a_proxy(cluster, monkeypatch):
    made = cluster(num_ps=1, num_workers=1)
    serve(made)
    for name in ("no_proxy", "no_grpc_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    # gRPC asks there with "CONNECT", and nobody listens.
    monkeypatch.setenv("http_proxy", "http://localhost:1")
    assert incarnation.read(made.address("ps", 0), 0, 20.0) is not None
