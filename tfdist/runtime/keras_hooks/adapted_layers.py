"""Normalization layers, which compute with constants made of their variables.

Where the chief alone has called `adapt`, the other workers get its mean and
variance from the servers, and have to make their constants again.
"""

import keras

from tfdist import private_keras


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
        if not self._is_prepared:
            self._is_prepared = True
            self._prepare()
        return call_in_fit(function, *args)

    def _prepare(self):
        found = {id(layer): layer for layer in _normalizations(self._model)}
        if not found:
            return
        # The first step would take over the chief's values after tracing.
        self._commit()
        for layer in found.values():
            layer.finalize_state()


def _normalizations(layer):
    if isinstance(layer, keras.layers.Normalization):
        yield layer
    for part in private_keras.sublayers(layer):
        yield from _normalizations(part)
