"""The states of an optimizer's step, as it is traced."""

from unittest import mock

import tensorflow as tf

from tfdist.runtime.local_steps import local_step
from tfdist.runtime.variables.variables import Role


def variable(ordinal, role):
    return mock.Mock(ordinal=ordinal, role=role)


def test_state_that_is_assigned_before_and_after_a_step_is_exchanged_once():
    # With Async(), an exchange adds a share of a worker's statistics.
    local = mock.Mock()
    both, before, after = (variable(k, Role.STATE) for k in range(3))
    with tf.Graph().as_default():
        step = local_step.LocalStep(local, mock.Mock(), [])
        # As `update` notes a parameter.
        step._touched[3] = variable(3, Role.PARAMETER)
        step.assigned(both)
        step.assigned(before)
        step.assigned(variable(4, Role.CLOCK))
        step.assigned(both)
        step.assigned(after)
        step.finish()
    (call,) = local.after_step.call_args_list
    assert call.kwargs["states"] == [both, before, after]
