"""Normalization layers, which compute with constants made of their variables.

Where the chief alone has called `adapt`, the other workers get its mean and
variance, as all do from a checkpoint, and have to make their constants again.
A layer that is built while a function is traced has constants that no other
function can use: until there are others, it computes with its variables. One
that is made with `mean` and `variance` has none, and fails as it does in plain
Keras.
"""

import keras
import tensorflow as tf

from tfdist import dynamic_subclasses
from tfdist import private_keras


def see(model):
    """Called when a call of a model, which may build layers, asks for data.

    Args:
      model: The `keras.Model`.
    """
    for layer in _normalizations(model):
        if not layer.built:
            dynamic_subclasses.specialize(layer, _BuiltInTrace)


def take_over(model):
    """Called when a model has got values of the chief, or of a checkpoint.

    Args:
      model: The `keras.Model`.
    """
    _make_constants(_normalizations(model))


def variables_of(model):
    """Returns what built layers of a model make their constants of, a list.

    Args:
      model: The `keras.Model`.
    """
    return [
        variable.value
        for layer in _normalizations(model)
        for variable in layer.weights
    ]


class AdaptedLayers:
    """Prepares the Normalization layers of a model for one call of `fit`.

    Args:
      model: The `keras.Model`.
      commit: Callable that brings new variables and the servers to one state.
    """

    def __init__(self, model, commit):
        self._model = model
        self._commit = commit
        self._is_prepared = False

    def call(self, call_in_fit, function, *args):
        """Calls a training step; prepares the layers before the first one."""
        if self._is_prepared:
            return call_in_fit(function, *args)
        self._is_prepared = True
        layers = _normalizations(self._model)
        if any(layer.built for layer in layers):
            # The first step would take over the chief's values after tracing.
            self._commit()
        unbuilt = [layer for layer in layers if not layer.built]
        _make_constants(layers)
        result = call_in_fit(function, *args)
        _make_constants(unbuilt)
        return result


class _BuiltInTrace:
    """A mixin: a Normalization layer with constants of another graph."""

    def call(self, inputs):
        """As Keras's; with the variables, if it has no constants that last."""
        constants = self.mean, self.variance
        if not tf.is_symbolic_tensor(self.mean):
            return super().call(inputs)
        self.finalize_state()
        result = super().call(inputs)
        self.mean, self.variance = constants
        return result


def _make_constants(layers):
    """Makes the constants of those layers that are built."""
    for layer in layers:
        layer.finalize_state()


def _normalizations(layer):
    """Returns the Normalization layers in a layer, each once, a list."""
    return [
        part
        for part in private_keras.with_sublayers(layer)
        if isinstance(part, keras.layers.Normalization)
    ]
