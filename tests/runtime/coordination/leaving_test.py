"""What a worker tells the others outside of steps, over lost servers."""

import pytest
import tensorflow as tf

import tfdist
from tfdist.synchronization import Sync


class LostOnce:
    """A `Ledger` on a server that has been started again.

    Attributes:
      told: What has come to it, a list of dicts.
    """

    def __init__(self):
        self.told = []
        self.is_lost = True

    def tick(self, **told):
        if self.is_lost:
            raise tf.errors.AbortedError(None, None, "another life")
        self.told.append(told)


class Call:
    """A `RunningFit`, of which it is said when it is over."""

    def __init__(self, is_over=False, is_around=False):
        self._is_over, self._is_around = is_over, is_around

    def end(self):
        self._is_over, self._is_around = True, False

    def is_over(self):
        return self._is_over

    def is_around(self, frame):
        del frame
        return self._is_around


@pytest.fixture
def made(monkeypatch):
    """A `Coordination` that works through a recovery, and its `LostOnce`."""
    runtime = tfdist.ParameterServerStrategy(synchronization=Sync())._runtime
    ledger = LostOnce()
    runtime.coordination._ledgers["0"] = ledger

    def call(function, *args):
        try:
            return function(*args)
        except tf.errors.OpError:
            ledger.is_lost = False
            return function(*args)

    monkeypatch.setattr(runtime.recovery, "call", call)
    # It has no state to report on.
    log = runtime.coordination._log
    monkeypatch.setattr(log, "report", lambda *args: None)
    return runtime.coordination, ledger


@pytest.mark.parametrize(
    "leave",
    [
        lambda coordination: coordination.leave(),
        lambda coordination: coordination.stay_away(),
        lambda coordination: coordination.leave_all_but([]),
    ],
)
def test_worker_that_leaves_outlives_the_loss_of_a_server(made, leave):
    coordination, ledger = made
    leave(coordination)
    (told,) = ledger.told
    assert told["leaving"]


def test_exception_that_ends_fit_is_told_over_the_loss_of_a_server(made):
    coordination, ledger = made
    coordination.watch(Call(is_over=True), frame=None)
    coordination.leave_if_over()
    coordination.leave_if_over()
    assert len(ledger.told) == 1


def test_in_one_process_a_run_ends_with_the_outermost_call_of_fit(made):
    """Callbacks train within one; gradients of a round that is open count."""
    coordination, ledger = made
    ledger.is_lost = False
    outer = Call(is_around=True)
    for call in (outer, Call(is_over=True), Call(is_over=True)):
        coordination.watch(call, frame=None)
        assert not ledger.told
    outer.end()
    ledger.is_lost = True
    coordination.watch(Call(), frame=None)
    assert ledger.told == [{"leaving": True}, {"joining": True}]


def test_heartbeat_does_not_recover(made):
    coordination, ledger = made
    coordination.watch(Call(is_over=True), frame=None)
    with pytest.raises(tf.errors.AbortedError):
        coordination.tick()
    ledger.is_lost = False
    coordination.tick()
    assert ledger.told[0]["leaving"]


def test_heartbeat_after_a_call_within_fit_does_not_leave(made):
    coordination, ledger = made
    ledger.is_lost = False
    outer = Call(is_around=True)
    for call in (outer, Call(is_over=True)):
        coordination.watch(call, frame=None)
    coordination.tick()
    assert not any(told.get("leaving") for told in ledger.told)
    outer.end()
    coordination.tick()
    assert any(told.get("leaving") for told in ledger.told)


def test_who_meets_others_within_fit_still_tells_that_an_exception_ended_it(
    made,
):
    coordination, ledger = made
    ledger.is_lost = False
    call = Call(is_around=True)
    coordination.watch(call, frame=None)
    coordination.leave(ends_fit=False)
    coordination.leave_if_over()
    assert len(ledger.told) == 1
    call.end()
    coordination.leave_if_over()
    assert len(ledger.told) == 2


@pytest.mark.parametrize("count", ["begun", "trained"])
def test_a_step_without_an_exchange_ends_an_absence(made, monkeypatch, count):
    """Of a period of local steps, the first ones."""
    coordination, ledger = made
    ledger.is_lost = False
    steps = {"begun": 0, "trained": 0}
    monkeypatch.setattr(
        coordination, "_steps", lambda: (steps["begun"], steps["trained"])
    )
    coordination.stay_away()
    coordination.tick()
    assert [told["leaving"] for told in ledger.told if "leaving" in told] == [
        True,
        True,
    ]
    steps[count] += 1
    coordination.tick()
    assert len([told for told in ledger.told if "leaving" in told]) == 2
