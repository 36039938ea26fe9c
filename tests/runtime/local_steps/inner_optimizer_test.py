"""An inner optimizer's state after steps that were not finite."""

from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from tfdist.runtime.local_steps import inner_optimizer


def test_state_that_is_not_finite_begins_as_keras_makes_it():
    optimizer = keras.optimizers.Adagrad(0.1, gradient_accumulation_steps=2)
    parameter = keras.Variable([1.0, 2.0])
    optimizer.build([parameter])
    first = [v.numpy() for v in optimizer.variables]
    state = [v.value for v in optimizer.variables]
    for value in state:
        if value.shape == parameter.shape:
            value.assign([np.nan, np.inf])
    inner = mock.Mock()
    inner.optimizer.return_value = optimizer
    inner.state.return_value = state
    inner_optimizer.begin_anew(inner, tf.constant(False))
    for value, wanted in zip(state, first, strict=True):
        np.testing.assert_array_equal(value.numpy(), wanted)
