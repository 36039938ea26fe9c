"""What a worker tells the others outside of steps, over lost servers."""

import functools
import types

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
    coordination.watch(types.SimpleNamespace(is_over=lambda: True))
    coordination.leave_if_over()
    coordination.leave_if_over()
    assert len(ledger.told) == 1


def test_in_one_process_a_run_ends_with_the_outermost_call_of_fit(made):
    """Callbacks train within one; gradients of a round that is open count."""
    coordination, ledger = made
    ledger.is_lost = False
    is_over = {"outer": False, "inner": True, "next": False}
    for name in ("outer", "inner", "inner"):
        call = types.SimpleNamespace(
            is_over=functools.partial(is_over.get, name)
        )
        coordination.watch(call)
        assert not ledger.told
    is_over["outer"] = ledger.is_lost = True
    coordination.watch(types.SimpleNamespace(is_over=lambda: False))
    assert ledger.told == [{"leaving": True}, {"joining": True}]


def test_heartbeat_does_not_recover(made):
    coordination, ledger = made
    coordination.watch(types.SimpleNamespace(is_over=lambda: True))
    with pytest.raises(tf.errors.AbortedError):
        coordination.tick()
