"""Servers and all-reduce are asked for local steps in the same way."""

import inspect
from unittest import mock

import pytest

from tfdist.runtime.local_steps import ring_communication
from tfdist.runtime.local_steps import server_communication


def methods(kind):
    """The public methods of a class: name -> signature."""
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_whoever_carries_local_steps_has_the_same_methods():
    assert methods(ring_communication.RingCommunication) == methods(
        server_communication.ServerCommunication
    )


def communication(coordination, *, has_others=True):
    return server_communication.ServerCommunication(
        mock.Mock(),
        coordination,
        mock.Mock(),
        mock.Mock(),
        has_others=has_others,
    )


def test_who_looks_in_a_loop_of_its_own_is_waited_for_as_before():
    # Else the others would go on without it, and its next push be dropped.
    coordination, inner = mock.Mock(), mock.Mock()
    made = communication(coordination)
    local = mock.Mock(fit=None, inners=[inner])
    local.is_training.return_value = False
    assert made.before_pull(local)
    local.exchange_left.assert_called_once_with(inner, False)
    coordination.leave_all_but.assert_not_called()


def test_who_looks_in_a_loop_after_a_fit_is_waited_for_as_before():
    coordination, inner = mock.Mock(), mock.Mock()
    made = communication(coordination)
    local = mock.Mock(inners=[inner])
    assert made.call_in_fit(local, int, "1") == 1
    (end,) = local.fit.before_end.call_args.args
    end()
    local.flush.assert_called_once_with(last=True)
    # Keras's `train_on_batch` calls it once more.
    assert made.call_in_fit(local, int, "2") == 2
    local.is_training.return_value = False
    assert made.before_pull(local)
    local.exchange_left.assert_called_once_with(inner, False)
    coordination.leave_all_but.assert_not_called()


@pytest.mark.parametrize("in_fit", [True, False])
def test_steps_of_a_freed_model_do_not_end_the_training_around_them(
    in_fit, monkeypatch
):
    """Such as of a model that a callback has trained, and let go of."""
    monkeypatch.setattr(
        server_communication.step_lib, "step_counter", mock.Mock()
    )
    coordination, inner = mock.Mock(waits=True), mock.Mock()
    made = communication(coordination)
    local = mock.Mock()
    local.is_training.return_value = in_fit
    assert made.release(local, [inner]) is not in_fit
    assert coordination.leave_all_but.called is not in_fit
    # Nobody waits for an only worker, which would keep the model for good.
    assert communication(coordination, has_others=False).release(local, [inner])
    inner.has_steps.return_value = False
    assert made.release(local, [inner])
