"""What the chief tells of workers that go and come back."""

import pytest

from tfdist.cluster import fit_progress
from tfdist.cluster import returns
from tfdist.cluster.member_table import Member
from tfdist.cluster.member_table import MemberState

NAMES = ("chief", "one")
CALL = 1
IN_FIT = fit_progress.begun(CALL)


class Chief:
    """Looks at the row of the other worker, by a clock of the test's."""

    def __init__(self):
        self.now = 100.0
        self._returns = returns.Returns(NAMES, 0, 10.0, lambda: self.now)

    def sees(
        self,
        *,
        life,
        epoch=0,
        batch=0,
        reached=IN_FIT,
        state=MemberState.ALIVE,
        silent_for=0.0,
        first=None,
    ):
        """What is told of a row like that."""
        word = fit_progress.Word(
            reached=reached,
            epoch=epoch,
            batch=batch,
            size=10,
            first_epoch=(first or (epoch, batch))[0],
            first_batch=(first or (epoch, batch))[1],
        )
        row = Member("one", state, silent_for, 0, life, word)
        own = Member("chief", MemberState.ALIVE, 0.0, 0, 1.0)
        return self._returns.look([own, row])


def test_a_worker_that_is_back_is_told_of_with_what_it_leaves_out():
    chief = Chief()
    assert chief.sees(life=50.0, epoch=2, batch=4) == []
    chief.now += 14.0
    # Its process is there, and its script has not come to `fit`.
    assert chief.sees(life=110.0, reached=0) == []
    said = chief.sees(life=110.0, epoch=4, batch=1)
    # From epoch 2, batch 4 of 10 to epoch 4, batch 1: 6 + 10 + 1.
    assert said == [
        "one is back after 14 s: it goes on at epoch 5, batch 2 of its data. "
        "By its last heartbeat it had come to epoch 3, batch 5: about 17 "
        "batches are left out."
    ]
    chief.now += 1.0
    assert chief.sees(life=110.0, epoch=4, batch=5) == []


def test_calls_of_fit_that_are_over_are_passed_in_silence():
    chief, second = Chief(), fit_progress.begun(CALL + 1)
    chief.sees(life=50.0, epoch=2, batch=4, reached=second)
    over = fit_progress.closed(CALL)
    first = fit_progress.OVER
    assert chief.sees(life=60.0, reached=over, first=first) == []
    (said,) = chief.sees(life=60.0, epoch=3, batch=1, reached=second)
    assert "it goes on at epoch 4, batch 2 of its data. By its last" in said


def test_what_is_done_twice_is_told():
    chief = Chief()
    chief.sees(life=50.0, epoch=2, batch=4)
    (said,) = chief.sees(life=60.0, epoch=2, batch=0)
    assert said.endswith("about 4 batches are done twice.")


def test_a_worker_that_has_trained_to_the_end_meanwhile_is_told_of():
    chief = Chief()
    chief.sees(life=50.0, epoch=2, batch=4)
    over = fit_progress.closed(CALL)
    (said,) = chief.sees(life=60.0, reached=over, epoch=9, first=(3, 4))
    assert "it goes on at epoch 4, batch 5" in said
    assert said.endswith("about 10 batches are left out.")


def test_a_worker_that_comes_back_to_a_call_that_is_over():
    chief = Chief()
    chief.sees(life=50.0, epoch=2)
    over = fit_progress.closed(CALL)
    (said,) = chief.sees(life=60.0, reached=over, first=fit_progress.OVER)
    assert said.endswith("it has nothing to do.")


@pytest.mark.parametrize(
    "changes, how",
    [
        ({"silent_for": 11.0}, "has not been heard of for 11 s"),
        ({"state": MemberState.FAILED}, "has failed"),
        ({"state": MemberState.LEFT}, "has left, as it was told to"),
    ],
)
def test_a_worker_that_is_gone_is_told_of_once(changes, how):
    chief = Chief()
    assert chief.sees(life=50.0) == []
    said = chief.sees(life=50.0, epoch=2, batch=4, **changes)
    assert said == [
        f"one {how}, at epoch 3, batch 5 of its data: the others go on "
        "without it."
    ]
    assert chief.sees(life=50.0, epoch=2, batch=4, **changes) == []


def test_a_worker_that_has_finished_is_not_missed():
    chief = Chief()
    chief.sees(life=50.0)
    over = fit_progress.closed(CALL)
    assert not chief.sees(
        life=50.0, reached=over, state=MemberState.FINISHED, silent_for=20.0
    )
