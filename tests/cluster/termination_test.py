"""When training is over, from the table of members."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
import pytest

from tfdist.cluster import termination
from tfdist.cluster.member_table import Member
from tfdist.cluster.member_table import MemberState

NEVER = float("inf")
PATIENCE, LOST_AFTER = 300.0, 20.0
SETTINGS = {"patience": PATIENCE, "lost_after": LOST_AFTER}


def worker(index, state, silent_for=0.0):
    return Member(f"/job:worker/task:{index}", state, silent_for, 0)


EVALUATOR = Member("/job:evaluator/task:0", MemberState.ALIVE, 0.0, 0)


def is_over(*rows, known_for=1000.0):
    return termination.is_over(
        [*rows, EVALUATOR], known_for=known_for, **SETTINGS
    )


def test_it_is_over_when_all_workers_have_finished():
    assert is_over(
        worker(0, MemberState.FINISHED, 900.0),
        worker(1, MemberState.FINISHED, 0.0),
    )


def test_a_worker_that_is_heard_of_is_waited_for():
    assert not is_over(
        worker(0, MemberState.FINISHED, 900.0),
        worker(1, MemberState.ALIVE, 1.0),
    )
    assert not is_over(worker(0, MemberState.ALIVE, 1.0))


# A worker that failed may be started again.
@pytest.mark.parametrize("state", [MemberState.ALIVE, MemberState.FAILED])
def test_a_silent_worker_is_not_waited_for_once_one_has_finished(state):
    rows = [worker(0, MemberState.FINISHED)]
    assert not is_over(*rows, worker(1, state, LOST_AFTER - 1))
    assert is_over(*rows, worker(1, state, LOST_AFTER + 1))


def test_a_worker_never_seen_is_silent_since_the_caller_looks():
    rows = [
        worker(0, MemberState.FINISHED),
        worker(1, MemberState.UNKNOWN, NEVER),
    ]
    assert not is_over(*rows, known_for=LOST_AFTER - 1)
    assert is_over(*rows, known_for=LOST_AFTER + 1)


def test_one_of_two_unfinished_workers_that_is_heard_of_is_enough():
    assert not is_over(
        worker(0, MemberState.FINISHED),
        worker(1, MemberState.ALIVE, 500.0),
        worker(2, MemberState.ALIVE, 1.0),
    )


def test_all_vanished_unfinished_is_an_error_that_names_them():
    rows = [
        worker(0, MemberState.FAILED, PATIENCE + 1),
        worker(1, MemberState.UNKNOWN, NEVER),
    ]
    assert not is_over(*rows, known_for=PATIENCE - 1)
    with pytest.raises(TimeoutError, match="task:0, /job:worker/task:1, of"):
        is_over(*rows)


def test_an_evaluator_that_has_finished_does_not_count_as_a_worker():
    done = Member("/job:evaluator/task:0", MemberState.FINISHED, 0.0, 0)
    rows = [worker(0, MemberState.ALIVE, LOST_AFTER + 1), done]
    assert not termination.is_over(rows, known_for=1000.0, **SETTINGS)
    # Nor to a server, which evaluators need as well.
    waits = {"known_for": 1000.0, "with_evaluators": True, **SETTINGS}
    assert not termination.is_over(rows, **waits)
    rows[0] = worker(0, MemberState.FAILED, PATIENCE + 1)
    rows[1] = dataclasses.replace(done, silent_for=PATIENCE + 1)
    with pytest.raises(TimeoutError, match="sign of /job:worker/task:0, of"):
        termination.is_over(rows, **waits)
    rows[0] = worker(0, MemberState.FINISHED)
    assert termination.is_over(rows, **waits)


def test_who_was_told_to_leave_is_not_waited_for_once_one_has_finished():
    assert is_over(worker(0, MemberState.FINISHED), worker(1, MemberState.LEFT))
    assert not is_over(
        worker(0, MemberState.ALIVE), worker(1, MemberState.LEFT)
    )


def test_all_told_to_leave_may_come_back():
    rows = [
        worker(0, MemberState.LEFT, PATIENCE - 1),
        worker(1, MemberState.LEFT, NEVER),
    ]
    assert not is_over(*rows)
    rows[0] = worker(0, MemberState.LEFT, PATIENCE + 1)
    with pytest.raises(TimeoutError, match="without a sign of /job:worker"):
        is_over(*rows)


def test_workers_that_were_to_join_later_and_did_not_are_not_waited_for():
    rows = [
        worker(0, MemberState.FINISHED),
        worker(1, MemberState.UNKNOWN, NEVER),
    ]
    known_for = {"known_for": 1.0, **SETTINGS}
    assert not termination.is_over(rows, **known_for)
    assert termination.is_over(rows, **known_for, initial_workers=1)
    assert termination.lost(rows, 1) == []
    assert termination.lost(rows, 2) == ["/job:worker/task:1"]
    rows[1] = worker(1, MemberState.ALIVE)
    assert not termination.is_over(rows, **known_for, initial_workers=1)


@given(
    st.lists(
        st.tuples(st.sampled_from(MemberState), st.floats(0.0, 1000.0)),
        min_size=1,
    ),
    st.floats(0.0, 1000.0),
)
def test_it_is_never_over_while_a_worker_is_heard_of(rows, known_for):
    rows = [worker(k, *row) for k, row in enumerate(rows)]
    heard_of = any(
        m.state not in (MemberState.FINISHED, MemberState.LEFT)
        and m.silent_for < LOST_AFTER
        for m in rows
    )
    try:
        over = termination.is_over(rows, known_for=known_for, **SETTINGS)
    except TimeoutError:
        over = True
        assert all(m.state != MemberState.FINISHED for m in rows)
    assert not (over and heard_of)


def test_who_has_not_come_to_where_others_meet_is_missing():
    arrived = Member("/job:worker/task:0", MemberState.ALIVE, 0.0, 2)
    rows = [
        arrived,
        worker(1, MemberState.ALIVE, 1.0),
        worker(2, MemberState.ALIVE, LOST_AFTER + 1),
        worker(3, MemberState.FINISHED),
        worker(4, MemberState.UNKNOWN, NEVER),
        worker(5, MemberState.UNKNOWN, NEVER),
        EVALUATOR,
    ]

    now = 100.0

    def missing(arrivals, expected):
        names = termination.missing(
            rows,
            lambda member: member.arrivals >= arrivals,
            expected,
            LOST_AFTER,
        )
        return [int(name.rpartition(":")[2]) for name in names]

    five, six = (
        termination.Expected(number, PATIENCE, clock=lambda: now)
        for number in (5, 6)
    )
    assert missing(2, five) == [1, 4]
    assert missing(3, six) == [0, 1, 4, 5]
    assert missing(0, six) == []
    # One that was never seen is awaited for so long, and no longer.
    now += PATIENCE - 1
    assert missing(2, five) == [1, 4]
    now += 1
    assert missing(2, five) == [1]
