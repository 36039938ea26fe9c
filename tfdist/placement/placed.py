"""Layers and models that run on the device that they were placed on."""

import contextlib
import functools
import inspect
import threading

import keras
import tensorflow as tf

from tfdist import dynamic_subclasses
from tfdist import model_optimizers
from tfdist import private_keras
from tfdist.placement import devices
from tfdist.placement import layers
from tfdist.placement import moving
from tfdist.placement import operations

# Whoever wants to know which name scope belongs to which layer.
_listeners = []
_instead = threading.local()


@contextlib.contextmanager
def replica_on(device):
    """Within it, placed layers run on `device` and not where they are.

    That is for replicas: the same layers, on another part of the data.
    """
    before = getattr(_instead, "device", None)
    _instead.device = device
    try:
        yield
    finally:
        _instead.device = before


@contextlib.contextmanager
def kernels_of(layer, device):
    """Within it, recurrent layers that run on a CPU do without cuDNN.

    Keras would take it everywhere if this process has a GPU.

    Args:
      layer: A `keras.Layer` or `keras.Operation` that is about to be called.
      device: The full name of the device that it runs on; None: unknown.
    """
    changed = []
    for part in layers.parts(layer) if device else ():
        # What the user has chosen otherwise stays.
        if getattr(part.layer, "use_cudnn", None) == "auto":
            where = getattr(_instead, "device", None)
            where = where or layers.device_of(part.layer) or device
            if tf.DeviceSpec.from_string(where).device_type == "CPU":
                changed.append(part.layer)
    for each in changed:
        each.use_cudnn = False
    try:
        yield
    finally:
        for each in changed:
            each.use_cudnn = "auto"


@contextlib.contextmanager
def listening(heard):
    """Calls `heard(layer, scope)` for each traced call of a placed layer."""
    _listeners.append(heard)
    try:
        yield
    finally:
        _listeners.remove(heard)


def put(layer, device):
    """Makes a layer's calls run on a device from now on.

    Args:
      layer: A `keras.Layer` or `keras.Operation`.
      device: A full name of a device; None leaves the layer where the layer
        is that calls it.
    """
    model = isinstance(layer, keras.Model)
    dynamic_subclasses.specialize(layer, PlacedModel if model else PlacedLayer)
    layer._tfdist_device = device
    # Asked by a model around it that is not placed itself.
    layer.supports_jit = False


@contextlib.contextmanager
def watched(all_layers):
    """Within it, layers that are not placed tell listeners of their calls."""
    added = [x for x in all_layers if not isinstance(x, PlacedLayer)]
    for layer in added:
        dynamic_subclasses.specialize(layer, PlacedLayer)
    try:
        yield
    finally:
        for layer in added:
            dynamic_subclasses.generalize(layer)


def put_optimizers(model):
    """Makes a model's optimizers keep slots where their variables are."""
    for optimizer in model_optimizers.optimizers_of(model):
        dynamic_subclasses.specialize(optimizer, PlacedOptimizer)


class PlacedOptimizer(private_keras.OptimizerOfOneReplica):
    """An optimizer that works where each variable is."""

    def update_step(self, gradient, variable, learning_rate):
        if tf.distribute.has_strategy():
            # It says where updates are done: on a server, say.
            return super().update_step(gradient, variable, learning_rate)
        with tf.device(variable.device or None):
            return super().update_step(gradient, variable, learning_rate)

    def add_variable_from_reference(self, reference_variable, *args, **kwargs):
        value = getattr(reference_variable, "value", reference_variable)
        with tf.device(value.device or None):
            return super().add_variable_from_reference(
                reference_variable, *args, **kwargs
            )


class PlacedLayer:
    """A layer whose variables and operations are on a device of its own."""

    def __call__(self, *args, **kwargs):
        device = getattr(_instead, "device", None) or layers.device_of(self)
        with kernels_of(self, device):
            return self._tfdist_run_on(device, args, kwargs)

    def _tfdist_run_on(self, device, args, kwargs):
        if tf.executing_eagerly():
            with tf.device(device) if device else contextlib.nullcontext():
                return super().__call__(*args, **kwargs)
        with contextlib.ExitStack() as stack:
            if device:
                stack.enter_context(tf.device(device))
                stack.enter_context(tf.name_scope(devices.scope(device)))
            elif _listeners:
                stack.enter_context(tf.name_scope("part"))
            for heard in _listeners:
                heard(self, tf.get_current_name_scope())
            return super().__call__(*args, **kwargs)

    @property
    def quantize(self):
        """Keras's method, whose layers refuse types that are not their class.

        Keras has put it into the instance, where a subclass's is not asked.
        """
        method = vars(self).get("quantize") or super().quantize
        kind = self.__class__
        # A user's subclass is refused as it is unplaced.
        if "quantize" in vars(kind) and kind.__module__.startswith("keras."):
            return _without_type_check(method)
        return method


class PlacedModel(PlacedLayer):
    """A model with layers on several devices."""

    def __call__(self, *args, **kwargs):
        built = self.built
        with operations.following():
            result = super().__call__(*args, **kwargs)
        if tf.executing_eagerly() and not built:
            # Keras makes variables after the call, where no layer is asked.
            moving.settle(self)
        return result

    def compile(self, *args, **kwargs):
        """As Keras's. A placed model cannot be compiled by XLA.

        Raises:
          ValueError: `jit_compile=True`.
        """
        if _jit_compile_of(super().compile, args, kwargs) is True:
            raise ValueError(
                "jit_compile=True came for a placed model: XLA compiles for "
                "one device and would ignore the placement. Leave it out, or "
                "set it to False."
            )
        super().compile(*args, **kwargs)
        self.jit_compile = False
        put_optimizers(self)
        moving.settle(self)

    def train_step(self, *args, **kwargs):
        # What has just been built could not be placed before.
        moving.settle(self)
        with operations.following():
            return super().train_step(*args, **kwargs)

    def test_step(self, *args, **kwargs):
        # What has just been built could not be placed before.
        moving.settle(self)
        with operations.following():
            return super().test_step(*args, **kwargs)

    def predict_step(self, *args, **kwargs):
        # What has just been built could not be placed before.
        moving.settle(self)
        with operations.following():
            return super().predict_step(*args, **kwargs)


def _without_type_check(method):
    @functools.wraps(method)
    def quantize(*args, **kwargs):
        return method(*args, **{**kwargs, "type_check": False})

    return quantize


def _jit_compile_of(compile_, args, kwargs):
    """The `jit_compile` that a model's `compile` is called with, or "auto"."""
    try:
        given = inspect.signature(compile_).bind(*args, **kwargs).arguments
    except TypeError:
        given = {}  # Keras itself says what is wrong with the arguments.
    return {**given, **kwargs}.get("jit_compile", "auto")
