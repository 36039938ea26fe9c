"""A worker's rows in the tables of servers that move."""

import threading

from tfdist.cluster import config as cluster_config
from tfdist.cluster import member_table
from tfdist.cluster import server_client

OLD, NEW = "localhost:1", "localhost:2"


def cluster(address):
    return cluster_config.ClusterConfig(
        {"ps": (address,), "worker": ("localhost:3",)}, "worker", 0
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
                waited.append(goes_on.wait(20.0))

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
