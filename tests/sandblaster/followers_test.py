"""For whom the chief waits at the end of `fit`."""

import itertools
import types

import pytest
import tensorflow as tf

from tests.sandblaster import tasks
from tests.sandblaster.fits import fit
import tfdist
from tfdist.cluster import member_table
from tfdist.sandblaster import barriers as barriers_lib
from tfdist.sandblaster import followers

_names = map("followers_test/{}".format, itertools.count())
ALIVE = member_table.MemberState.ALIVE
FINISHED = member_table.MemberState.FINISHED


def chief_and_other(state):
    """The `Followers` of both, where the other worker is in a state."""
    device = tf.config.list_logical_devices("CPU")[0].name
    members = [
        types.SimpleNamespace(name=f"worker {k}", state=one, silent_for=0.0)
        for k, one in enumerate((ALIVE, state))
    ]
    name = next(_names)
    return [
        followers.Followers(
            name,
            device,
            device,
            worker,
            2,
            types.SimpleNamespace(read=lambda: members),
            tfdist.FaultTolerance(stall_timeout=0.05),
        )
        for worker in range(2)
    ]


@pytest.mark.parametrize(
    ("notes", "state", "waits"),
    [
        ([], ALIVE, True),
        ([], FINISHED, False),
        ([1], ALIVE, True),
        ([2], ALIVE, True),
        ([2], FINISHED, False),
        ([2, 3], ALIVE, False),
        ([4], ALIVE, False),
    ],
)
def test_the_chief_waits_for_all_that_are_there(caplog, notes, state, waits):
    chief, other = chief_and_other(state)
    for note in notes:
        other.note(note)
    chief.wait(3)
    assert ("Goes on without worker 1" in caplog.text) is waits


def test_the_chief_remembers_who_has_ended_when_a_server_is_lost(caplog):
    chief, other = chief_and_other(ALIVE)
    other.note(3)
    chief.wait(3)
    chief._record.change(lambda rows, now: rows.clear())
    chief.wait(3)
    assert "Goes on without" not in caplog.text
    # But not of what has begun since.
    other.note(2)
    chief.wait(3)
    assert "Goes on without worker 1" in caplog.text


def test_a_call_that_the_others_have_ended_is_told(caplog):
    strategy = tfdist.SandblasterStrategy()
    model = tasks.make_model(strategy)
    board = strategy._training.board
    before = board.read()
    board.change(lambda record, now: record.update(fit=7, done=1))
    try:
        assert not fit(model, 1).history
    finally:
        board.change(
            lambda record, now: (record.clear(), record.update(before))
        )
    assert "Call 1 of `fit` is left out" in caplog.text
    assert "had begun call 8" in caplog.text


@pytest.mark.parametrize(
    ("state", "barriers", "waits"),
    [(ALIVE, 1, True), (ALIVE, 2, False), (FINISHED, 0, False)],
)
def test_a_barrier_waits_for_the_same_call_of_the_others(
    caplog, state, barriers, waits
):
    members = [
        member_table.Member(name, one, 0.0, 0, barriers=count)
        for name, one, count in [("me", ALIVE, 2), ("other", state, barriers)]
    ]
    membership = types.SimpleNamespace(
        call_barrier=lambda: 2, tell=bool, read=lambda: members
    )
    barriers_lib.Barriers(
        membership,
        types.SimpleNamespace(initial_workers=2),
        tfdist.FaultTolerance(stall_timeout=0.05),
    ).meet(lambda function: function())
    text = "other to call strategy.barrier(). Going on without"
    assert (text in caplog.text) is waits


def test_one_process_meets_nobody():
    tfdist.SandblasterStrategy().barrier()
