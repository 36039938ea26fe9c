"""An inner optimizer's state after steps that were not finite."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.runtime.local_steps import inner_optimizer


def begin_anew(optimizer, state):
    inner = mock.Mock()
    inner.optimizer.return_value = optimizer
    inner.state.return_value = state
    inner_optimizer.begin_anew(inner, tf.constant(False))


def test_state_that_is_not_finite_begins_as_keras_makes_it():
    optimizer = keras.optimizers.Adagrad(0.1, gradient_accumulation_steps=2)
    parameter = keras.Variable([1.0, 2.0])
    optimizer.build([parameter])
    first = [v.numpy() for v in optimizer.variables]
    state = [v.value for v in optimizer.variables]
    for value in state:
        if value.shape == parameter.shape:
            value.assign([np.nan, np.inf])
    begin_anew(optimizer, state)
    for value, wanted in zip(state, first, strict=True):
        np.testing.assert_array_equal(value.numpy(), wanted)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_learning_rate_that_is_set_to_nan_stays_so(scaled):
    """As a rate of 0, it would end training without a word."""
    rule = optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(rule)
    optimizer.build([keras.Variable(1.0)])
    rule.learning_rate = float("nan")
    (momentum,) = [v for v in optimizer.variables if "momentum" in v.path]
    momentum.assign(np.nan)
    begin_anew(optimizer, [v.value for v in optimizer.variables])
    assert np.isnan(float(rule.learning_rate))
    assert float(momentum) == 0.0
