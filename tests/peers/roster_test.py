"""Who is there: processes that are lost, and those that join in their place."""

from tfdist.cluster import ClusterConfig
from tfdist.peers.roster import Roster


def roster_of_three():
    """The roster of worker 0, which has met both others."""
    addresses = [f"localhost:{port}" for port in (1, 2, 3)]
    roster = Roster(ClusterConfig({"worker": addresses}, "worker", 0), "test")
    roster.known.update({1: 11, 2: 12})
    return roster


def test_a_process_that_joins_takes_the_place_of_the_lost_one():
    roster = roster_of_three()
    roster.give_up(1, "it is silent", incarnation=11)
    assert roster.live == [2]
    roster.admit(1, 21)
    assert roster.live == [1, 2]
    assert roster.known[1] == 21
    assert roster.joined == {1}


def test_who_loses_the_old_process_does_not_give_up_the_new_one():
    roster = roster_of_three()
    roster.admit(1, 21)
    roster.give_up(1, "it was started again", incarnation=11)
    assert roster.live == [1, 2]
    roster.give_up(1, "it is silent", incarnation=21)
    assert roster.live == [2]


def test_nobody_waits_for_those_that_come_later():
    roster = roster_of_three()
    roster.await_later([0, 2])
    assert roster.live == [1]
    assert roster.joined == set()


def test_a_worker_that_was_given_up_is_told_of_all_bounds():
    """Of the reason it hears nothing: it is in the other's log."""
    message = roster_of_three().left_behind(2).message
    assert message.startswith(
        "/job:worker/task:0 was given up by /job:worker/task:2, "
    )
    assert "The log of /job:worker/task:2 says which." in message
    for setting in ("worker_timeout=", "stall_timeout=", "on_stall='wait'"):
        assert setting in message
