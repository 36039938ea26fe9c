"""When a server ends the sessions that killed processes have left."""

import pytest

from tfdist.cluster import member_table
from tfdist.cluster import orphaned_sessions
from tfdist.cluster import sessions

ADDRESS = "localhost:7"


@pytest.fixture
def ended(monkeypatch):
    """Addresses of the servers all of whose sessions were ended."""
    found = []
    monkeypatch.setattr(sessions, "end_all", found.append)
    return found


def rows(*lives):
    return [
        member_table.Member(
            f"worker {k}", member_table.MemberState.ALIVE, 0.0, 0, life
        )
        for k, life in enumerate(lives)
    ]


def test_sessions_are_ended_once_for_each_sixteen_lives(ended):
    left = orphaned_sessions.Remnants(ADDRESS)
    left.look(rows(0.0, 0.0))
    # The first life of each is no other.
    left.look(rows(100.0, 103.0))
    for life in range(1, 33):
        # They are numbers in no order.
        left.look(rows(100.0 + 10.0 * (-1) ** life * life, 103.0))
        assert ended == [ADDRESS] * (life // 16)
