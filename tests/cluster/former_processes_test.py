"""Whom a process waits for that looks for its former one."""

import time
import types

import pytest

from tfdist.cluster import former_processes
from tfdist.cluster.member_table import Member
from tfdist.cluster.member_table import MemberState

UNKNOWN, ALIVE = MemberState.UNKNOWN, MemberState.ALIVE


@pytest.mark.parametrize(
    ("is_new", "initial_workers", "looks"),
    {
        "the server may not have heard of it": (True, 2, 3),
        "it does not live": (False, 2, 1),
        "the cluster begins without it": (True, 1, 1),
    }.values(),
)
def test_who_lives_is_waited_for_before_the_first_server_has_heard_of_it(
    is_new, initial_workers, looks
):
    """The server was started again, and the other worker not."""
    # State of the other worker, and whether it has told; one by one.
    others = [(UNKNOWN, True), (ALIVE, False), (ALIVE, True)]
    seen = []

    def read_former():
        seen.append(others[len(seen)])
        return [f"row {len(seen)}"], [True, seen[-1][1]]

    def read():
        states = ALIVE, seen[-1][0]
        return [Member("one", state, 0.0, 0) for state in states]

    looked = time.monotonic() + (60.0 if is_new else -60.0)
    table = types.SimpleNamespace(read_former=read_former)
    found = former_processes.find(table, read, initial_workers, looked)
    assert found == [f"row {looks}"]


def test_who_was_silent_long_before_is_not_waited_for(caplog):
    """It has died; a member that lives has put its row back."""
    rows = [Member("one", ALIVE, 0.5, 0), Member("two", ALIVE, 3600.0, 0)]
    table = types.SimpleNamespace(
        read_former=lambda: (["former row"], [True, False])
    )
    found = former_processes.find(table, lambda: rows, 2, time.monotonic())
    assert found == ["former row"]
    assert not caplog.records
