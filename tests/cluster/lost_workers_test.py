"""Who has left a call of `fit`, or is gone."""

import dataclasses

import pytest

from tfdist.cluster import fit_progress
from tfdist.cluster import lost_workers
from tfdist.cluster.member_table import Member
from tfdist.cluster.member_table import MemberState

CALL, TIMEOUT = 2, 10.0
TRAINS = Member(
    "worker",
    MemberState.ALIVE,
    silent_for=1.0,
    arrivals=0,
    word=fit_progress.Word(reached=fit_progress.begun(CALL)),
)


def is_lost(**changes):
    rows = [TRAINS, dataclasses.replace(TRAINS, **changes)]
    lost = lost_workers.LostWorkers(
        lambda: rows,
        fit_progress.begun(CALL),
        fit_progress.ended(CALL),
        TIMEOUT,
    )
    found = lost.find({0, 1})
    assert 0 not in found
    return 1 in found


def test_who_trains_is_there():
    assert not is_lost()


@pytest.mark.parametrize(
    "state", [MemberState.FINISHED, MemberState.FAILED, MemberState.LEFT]
)
def test_whose_process_has_ended_is_lost(state):
    assert is_lost(state=state)


def test_who_is_silent_for_too_long_is_lost():
    assert not is_lost(silent_for=TIMEOUT)
    assert is_lost(silent_for=TIMEOUT + 0.1)


@pytest.mark.parametrize(
    "reached",
    [
        0,  # A new process.
        fit_progress.closed(CALL - 1),
        fit_progress.ended(CALL),
        fit_progress.begun(CALL + 1),
    ],
)
def test_who_is_in_another_call_is_lost(reached):
    assert is_lost(word=fit_progress.Word(reached=reached))


def test_who_is_in_no_table_yet_is_there_for_a_while(monkeypatch):
    rows = [
        dataclasses.replace(
            TRAINS, state=MemberState.UNKNOWN, silent_for=float("inf")
        )
    ]
    now = [0.0]
    monkeypatch.setattr(lost_workers.time, "monotonic", lambda: now[0])
    lost = lost_workers.LostWorkers(
        lambda: rows,
        fit_progress.begun(CALL),
        fit_progress.ended(CALL),
        TIMEOUT,
    )
    assert lost.find([0]) == []
    now[0] = TIMEOUT
    assert lost.find([0]) == []
    now[0] = TIMEOUT + 0.1
    assert lost.find([0]) == [0]
    # It has come back, and the table is lost once more.
    rows[0], gone = TRAINS, rows[0]
    assert lost.find([0]) == []
    rows[0] = gone
    assert lost.find([0]) == []
