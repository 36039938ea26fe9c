"""Private names of Keras's by which it builds models.

See `private_keras`; `tests/private_keras_building_test.py` has the canaries.
"""

import keras

from tfdist import dynamic_subclasses
from tfdist import private_keras


def build_without_data(model):
    """Has Keras take no batch of the data to build a model.

    Under a strategy Keras calls a model, its loss and its metrics before the
    first step, to build them for a batch. Those of a `train_step` of the
    user's own may have no `call`, or one that takes something else: they are
    built in their steps, as without a strategy. For others Keras asks the data
    for an iterator, which gives it what the data says of its batches; but a
    validation within `fit` has that of the validation before, and raises
    `StopIteration` where it has ended. Keras has no public way to tell it not
    to.

    Args:
      model: A `keras.Model`.
    """
    if has_own_train_step(model):
        private_keras.require(model, "_maybe_symbolic_build")
        dynamic_subclasses.specialize(model, _BuiltInFirstStep)
    else:
        build_for_new_iterator(model)


def build_for_new_iterator(model):
    """Has Keras ask the data for an iterator to build a model for.

    Args:
      model: A `keras.Model`, with any `train_step`.
    """
    private_keras.require(model, "_maybe_symbolic_build")
    dynamic_subclasses.specialize(model, _BuiltForNewIterator)


def has_own_train_step(model):
    """Whether the `train_step` of a `keras.Model` is not Keras's own."""
    # Not `type`, which may be a specialized class.
    stock = model.__class__.train_step is keras.Model.train_step
    return not stock or "train_step" in vars(model)


def unbuilt_layers(model):
    """Returns the layers within a Keras model that are yet to be built, a list.

    One that has no `build` of its own has nothing to build but its parts, and
    may stay unbuilt for good, as an augmentation that only a step calls.
    """
    stock = [keras.layers.Layer.build, keras.Sequential.build]
    _, *layers = private_keras.with_sublayers(model)
    return [
        layer
        for layer in layers
        if not layer.built and type(layer).build not in stock
    ]


def is_built(model):
    """Whether a Keras model, and all that it consists of, is built.

    The public `built` is of the model alone: Keras has built the rest by then,
    but for what a `train_step` of its own calls besides.

    Args:
      model: A `keras.Model`.
    """
    if not model.built or not has_own_train_step(model):
        return model.built
    return not unbuilt_layers(model)


def is_rematerialized(layer):
    """Whether Keras may compute a layer again for its gradient.

    A layer made in a `keras.RematScope` says so nowhere else. Where only
    activations are computed again, its weights are not concerned.

    Args:
      layer: A `keras.Layer`.
    """
    private_keras.require(layer, "_remat_mode")
    mode = layer._remat_mode
    return bool(mode) and mode.mode not in (None, "activations")


class _BuiltInFirstStep:
    """A mixin: a model that Keras builds nothing of before its steps."""

    def _maybe_symbolic_build(self, *args, **kwargs):
        pass


class _BuiltForNewIterator:
    """A mixin: a model that Keras builds for an iterator of its own."""

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        if iterator is not None:
            private_keras.require(iterator, "_current_iterator")
            iterator._current_iterator = None
        super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)
