"""Workers that begin after the first has trained for a while."""

import pytest

import tfdist
from tfdist.cluster.member_table import Member
from tfdist.cluster.member_table import MemberState
from tfdist.runtime.keras_hooks.warm_start import WarmStart
from tfdist.synchronization import Async
from tfdist.synchronization import Sync


class _Others:
    """A first worker that has made one more step whenever it is asked."""

    def __init__(self, ends_after=10**6, step=1, ends=MemberState.ALIVE):
        self.made = 0
        self._ends_after = ends_after
        self._step = step
        self._ends = ends

    def steps_made(self):
        self.made = min(self.made + self._step, self._ends_after)
        return self.made

    def member(self):
        over = self.made >= self._ends_after
        arrived = over and self._ends is MemberState.ALIVE
        state = self._ends if over else MemberState.ALIVE
        return Member("/job:worker/task:0", state, 0.0, 3 + arrived)


def _warm_start(steps=20, worker_start="together", stalled_after=30.0):
    return WarmStart(steps, worker_start, Async(), stalled_after)


@pytest.mark.parametrize(
    ("worker_start", "wanted"),
    [("together", [0, 20, 20, 20]), ("staggered", [0, 20, 40, 60])],
)
def test_when_each_worker_begins(worker_start, wanted):
    start = _warm_start(worker_start=worker_start)
    assert [start.steps_before(k) for k in range(4)] == wanted


@pytest.mark.parametrize("worker_start", ["together", "staggered"])
def test_a_worker_begins_at_its_step_and_not_before(worker_start):
    start, others = _warm_start(3, worker_start), _Others()
    assert start.wait(2, others.steps_made, others.member)
    wanted = start.steps_before(2)
    assert wanted <= others.made <= wanted + 1


def test_a_worker_that_comes_later_begins_at_once():
    others = _Others(step=20)
    assert not _warm_start().wait(1, others.steps_made, others.member)
    assert others.made == 20


@pytest.mark.parametrize("ends", [MemberState.ALIVE, MemberState.FINISHED])
def test_nobody_waits_for_a_first_worker_that_has_ended(ends, caplog):
    """Its process has, or its training: it waits for the others then."""
    others = _Others(ends_after=5, ends=ends)
    assert _warm_start().wait(1, others.steps_made, others.member)
    assert "ended its training after 5 steps" in caplog.text


def test_nobody_waits_for_a_first_worker_that_makes_no_step(caplog):
    others = _Others()
    start = _warm_start(stalled_after=0.2)
    assert start.wait(1, lambda: 7, others.member)
    assert "train for 20 steps (warmup_worker_steps; 7 so far)" in caplog.text


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="Received: warmup_worker_steps=-1"):
        tfdist.AsyncStrategy(warmup_worker_steps=-1)
    with pytest.raises(ValueError, match="one of together, staggered.*'later'"):
        tfdist.AsyncStrategy(warmup_worker_steps=1, worker_start="later")
    with pytest.raises(ValueError, match=r"must be 0 with Sync\(.*steps=5"):
        tfdist.ParameterServerStrategy(
            synchronization=Sync(), warmup_worker_steps=5
        )


def test_one_process_waits_for_nobody():
    strategy = tfdist.AsyncStrategy(warmup_worker_steps=100)
    strategy.wait_for_warm_start()
