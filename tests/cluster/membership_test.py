"""A worker's rows in the tables of servers that move."""

import socket
import threading
import types

import numpy as np
import pytest

from tfdist.cluster import config as cluster_config
from tfdist.cluster import member_table
from tfdist.cluster import membership as membership_lib
from tfdist.cluster import server_client
from tfdist.cluster import sessions

OLD, NEW = "localhost:1", "localhost:2"


def cluster(*addresses):
    return cluster_config.ClusterConfig(
        {"ps": addresses, "worker": ("localhost:3",)}, "worker", 0
    )


def no_rows():
    """What a table has of one worker that was never there, and the time."""
    return np.zeros([1, member_table._COLUMNS]), 0.0


def test_nobody_waits_for_a_heartbeat_to_where_a_server_was(monkeypatch):
    is_there, goes_on = threading.Event(), threading.Event()
    waited, written = [], []

    def function(client, build, signature):
        del build
        if not signature:
            return no_rows

        def write(values):
            if client.address == NEW:
                written.append(values)
            elif not is_there.is_set():
                is_there.set()
                waited.append(goes_on.wait(120.0))

        return write

    monkeypatch.setattr(server_client.ServerClient, "function", function)
    device = "/job:ps/replica:0/task:0/device:CPU:0"
    membership = membership_lib.Membership(cluster(OLD), [device])
    assert is_there.wait(60.0)
    membership.reconnected(cluster(NEW))
    membership.enter_again()
    monkeypatch.setattr(sessions, "listens", lambda *_: True)
    membership.leave(member_table.MemberState.LEFT)
    # Of the heartbeat nothing has come yet.
    states = [int(values[0]) for values in written]
    alive, left = member_table.MemberState.ALIVE, member_table.MemberState.LEFT
    assert (states, waited) == ([alive, left], [])
    goes_on.set()
    membership._threads[0].join(60.0)
    # What comes after the last word is not said.
    assert (len(written), waited) == (2, [True])


def test_the_table_of_another_cluster_is_left_alone(monkeypatch):
    written = []

    def function(client, build, signature):
        del client, build
        if signature:
            return written.append
        return lambda: (np.zeros([2, member_table._COLUMNS]), 0.0)

    monkeypatch.setattr(server_client.ServerClient, "function", function)
    device = "/job:ps/replica:0/task:0/device:CPU:0"
    membership = membership_lib.Membership(cluster(OLD), [device])
    membership.wait_until_entered(60.0, mend=lambda: None)
    assert membership.is_foreign
    membership.leave(member_table.MemberState.FAILED)
    assert not written


@pytest.mark.parametrize("listens", [False, True])
def test_the_end_of_a_worker_does_not_wait_for_a_server_that_is_gone(
    monkeypatch, listens
):
    """Its heartbeat hangs; the server that answers is told nevertheless.

    One that listens is waited for, and no longer than it may.
    """
    goes_on = threading.Event()
    beats, told = threading.Event(), []

    def function(client, build, signature):
        del build
        if not signature:
            return no_rows

        def write(values):
            if client.address == OLD:
                beats.set()
                goes_on.wait(120.0)
            else:
                told.append(int(values[0]))

        return write

    monkeypatch.setattr(server_client.ServerClient, "function", function)
    devices = [f"/job:ps/replica:0/task:{k}/device:CPU:0" for k in range(2)]
    membership = membership_lib.Membership(cluster(OLD, NEW), devices)
    assert beats.wait(60.0)
    monkeypatch.setattr(
        sessions, "listens", lambda address, _: listens or address == NEW
    )
    # Longer than a test may take.
    monkeypatch.setattr(membership_lib, "_ANSWER_SECONDS", 600.0)
    if listens:
        # For an hour nothing was heard of it, whose beat is under way.
        membership._answered[0] -= 3600.0
        monkeypatch.setattr(membership_lib, "_LAST_WAIT_SECONDS", 0.1)
    membership.leave(member_table.MemberState.FINISHED)
    assert told[-1] == member_table.MemberState.FINISHED
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
