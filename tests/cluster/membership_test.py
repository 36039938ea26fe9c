"""A worker's rows in the tables of servers that move."""

import socket
import threading
import types

from tfdist.cluster import config as cluster_config
from tfdist.cluster import member_table
from tfdist.cluster import server_client

OLD, NEW = "localhost:1", "localhost:2"


def cluster(*addresses):
    return cluster_config.ClusterConfig(
        {"ps": addresses, "worker": ("localhost:3",)}, "worker", 0
    )


def test_nobody_waits_for_a_heartbeat_to_where_a_server_was(monkeypatch):
    is_there, goes_on = threading.Event(), threading.Event()
    waited, written = [], []

    def function(client, build, signature):
        del build, signature

        def write(values):
            if client.address == NEW:
                written.append(values)
            elif not is_there.is_set():
                is_there.set()
                waited.append(goes_on.wait(120.0))

        return write

    monkeypatch.setattr(server_client.ServerClient, "function", function)
    device = "/job:ps/replica:0/task:0/device:CPU:0"
    membership = member_table.Membership(cluster(OLD), [device])
    assert is_there.wait(60.0)
    membership.reconnected(cluster(NEW))
    membership.enter_again()
    # Of the heartbeat nothing has come yet.
    assert (len(written), waited) == (1, [])
    goes_on.set()
    membership.leave(member_table.MemberState.LEFT)
    assert waited == [True]


def test_the_end_of_a_worker_does_not_wait_for_a_server_that_is_gone(
    monkeypatch,
):
    """Its heartbeat hangs; the server that answers is told nevertheless."""
    goes_on = threading.Event()
    beats, told = threading.Event(), []

    def function(client, build, signature):
        del build, signature

        def write(values):
            if client.address == OLD:
                beats.set()
                goes_on.wait(120.0)
            else:
                told.append(int(values[0]))

        return write

    monkeypatch.setattr(server_client.ServerClient, "function", function)
    devices = [f"/job:ps/replica:0/task:{k}/device:CPU:0" for k in range(2)]
    membership = member_table.Membership(cluster(OLD, NEW), devices)
    assert beats.wait(60.0)
    waits = []
    for thread in membership._threads:
        join = thread.join
        monkeypatch.setattr(
            thread,
            "join",
            lambda timeout, join=join: waits.append(timeout) or join(0.5),
        )
    # For an hour nothing was heard of the first, whose beat is under way.
    membership._answered[0] -= 3600.0
    membership.leave(member_table.MemberState.FINISHED)
    assert told[-1] == member_table.MemberState.FINISHED
    first, second = waits
    assert second <= 2.0 < first <= 10.0
    goes_on.set()


def test_a_session_is_not_closed_where_nobody_listens_any_more():
    closed = []
    session = types.SimpleNamespace(close=lambda: closed.append(True))
    with socket.socket() as server:
        server.bind(("localhost", 0))
        address = f"localhost:{server.getsockname()[1]}"
        # The port is held, and nobody listens.
        server_client._close_where_it_was(session, address)
        assert closed == []
        server.listen()
        server_client._close_where_it_was(session, address)
        assert closed == [True]
