"""A call of `fit`: its learning rates, and one that a worker only passes."""

import types

import keras
import numpy as np
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


def _runtime(commit=lambda: None, held=0):
    return types.SimpleNamespace(
        commit=commit,
        store=types.SimpleNamespace(variables=["kernel", "bias"]),
        synchronizer=types.SimpleNamespace(held=lambda: held),
        unused_models=types.SimpleNamespace(refuse=lambda variables: None),
    )


@pytest.mark.parametrize("held", [2, 3])
def test_a_call_that_is_passed_builds_what_others_have_built(held):
    """Steps of a GAN do without the optimizer that `compile()` makes."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile()
    fit_call.take_over(model, _runtime(held=held))
    assert model.optimizer.built == (held > 2)


def test_a_call_that_is_passed_normalizes_by_the_chiefs_values_after_it():
    """The chief alone has adapted the layer; no step makes its constants."""
    layer = keras.layers.Normalization()
    model = keras.Sequential([keras.Input([1]), layer])
    model.compile("sgd", "mse")

    def commit():
        layer.adapt_mean.assign([3.0])
        layer.adapt_variance.assign([4.0])

    fit_call.take_over(model, _runtime(commit))
    x = np.array([[1.0], [7.0]], np.float32)
    np.testing.assert_array_equal(model.predict(x, verbose=0), (x - 3.0) / 2.0)


class OwnStep(keras.Sequential):
    """A model that trains its parts in a step of its own."""

    def train_step(self, data):
        """As a GAN's, with the optimizers of the parts."""


@pytest.mark.parametrize("make", [keras.Sequential, OwnStep])
def test_a_step_of_its_own_may_use_what_parts_are_compiled_with(make):
    """Keras's step does not, such as with a pretrained part."""
    parts = []
    for rate in (0.5, 0.25):
        part = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        part.compile(keras.optimizers.SGD(rate), "mse")
        parts.append(part)
    model = make([keras.Input([1]), *parts])
    model.compile(keras.optimizers.SGD(0.125), "mse")
    call = fit_call.FitCall(types.SimpleNamespace(f_locals={"self": model}), 1)
    call.find_rates()
    others = (0.5, 0.25) if make is OwnStep else ()
    assert call.own_rates() == (*others, 0.125)
    assert fit_call.makes_all_when_built(model) == (not others)


def test_a_step_of_its_own_may_use_optimizers_of_layers():
    layer = keras.layers.Dense(1)
    layer.rule = keras.optimizers.SGD(0.5)
    model = OwnStep([keras.Input([1]), layer])
    model.compile(keras.optimizers.SGD(0.125), "mse")
    call = fit_call.FitCall(types.SimpleNamespace(f_locals={"self": model}), 1)
    call.find_rates()
    assert call.own_rates() == (0.5, 0.125)
