"""A call of `fit` that this worker only passes."""

import keras
import pytest

from tfdist.runtime.keras_hooks import fit_call


@pytest.mark.parametrize("has_others", [False, True])
def test_a_call_that_is_passed_makes_no_slots_that_others_may_not_have(
    has_others,
):
    """Where there are several, steps may never use that of `compile`."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    if has_others:
        model.second = keras.optimizers.SGD()
    fit_call.build_optimizer(model)
    assert model.optimizer.built != has_others
