"""An inner optimizer's state after steps that were not finite."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.runtime.local_steps import inner_optimizer

OPTIMIZERS = {
    "adagrad": lambda: keras.optimizers.Adagrad(
        0.1, gradient_accumulation_steps=2
    ),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "schedule free": lambda: keras.optimizers.ScheduleFreeAdamW(0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_that_is_not_finite_begins_as_keras_makes_it(name, monkeypatch):
    """A point of `ScheduleFreeAdamW` begins at the parameter, as it is now."""
    optimizer = OPTIMIZERS[name]()
    optimizer.build([keras.Variable([1.0, 2.0])])
    first = [v.numpy() for v in optimizer.variables]
    parameter = keras.Variable([3.0, 4.0])
    optimizer = OPTIMIZERS[name]()
    optimizer.build([parameter])
    state = [v.value for v in optimizer.variables]
    for value in state:
        if value.shape == parameter.shape:
            value.assign([np.nan, np.inf])
    parameter.assign([1.0, 2.0])
    inner = mock.Mock()
    inner.optimizer.return_value = optimizer
    inner.state.return_value = state
    monkeypatch.setattr(inner_optimizer, "read_replica", tf.convert_to_tensor)
    inner_optimizer.begin_anew(inner, tf.constant(False))
    for value, wanted in zip(state, first, strict=True):
        np.testing.assert_array_equal(value.numpy(), wanted)
