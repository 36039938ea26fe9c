"""Placement of operations that no layer's call has placed.

Backward operations, loss, regularization and the optimizer's arithmetic are
built outside any layer's call. TensorFlow puts an operation without a device
on the first device, whatever it works on. What is built inside `following()`
goes instead

1. where it was explicitly put,
2. else, if it is the gradient of an operation of a placed layer, where that
   layer is (a tape builds gradients under the name scope of what they belong
   to, and a placed layer's scope names its device),
3. else, if it is the gradient of an operation of the same function, where
   that went,
4. else where the largest of its inputs lies.
"""

from collections.abc import Iterator
import contextlib
import weakref

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.placement import devices

_GRADIENTS = "gradient_tape/"
# Graph -> name scope -> (device, size) of the largest tensor that an operation
# of that scope has worked on.
_scopes = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def following() -> Iterator[None]:
    """A context in which operations without a device follow their inputs.

    For training steps of one's own, around all of what a `tf.function` builds:
    `with tfdist.placement.following(): ... tape.gradient(...)`. `model.fit` of
    a placed model does so by itself. Does nothing outside a `tf.function`,
    where TensorFlow gives no such control.
    """
    if tf.executing_eagerly():
        yield
        return
    with tf.compat.v1.device(_place):
        yield


def _place(operation):
    device = _device_of(operation)
    if device:
        for tensor in operation.inputs:
            if tensor.op.type == "Const" and not tensor.op.device:
                # Else it may be sent, in a loop at each turn.
                private_tensorflow.set_device(tensor.op, device)
    return device


def _device_of(operation):
    if operation.device:
        return operation.device
    device = devices.of_scope(operation.name)
    if device or operation.type == "Placeholder":
        return device
    scope = operation.name.rpartition("/")[0]
    scopes = _scopes.setdefault(operation.graph, {})
    device, size = _largest_input(operation)
    if operation.name.startswith(_GRADIENTS):
        forward = f"{scope}/".removeprefix(_GRADIENTS).rstrip("/")
        return _of_forward(forward, scopes, device, size)
    if device and size >= scopes.get(scope, ("", -1))[1]:
        scopes[scope] = device, size
    return device


def _of_forward(scope, scopes, device, size):
    """Device of the gradient of what a name scope has.

    Args:
      scope: The name scope of the forward operation, perhaps with its name.
      scopes: What is known of name scopes.
      device: Where the gradient's own largest input is.
      size: Its size.
    """
    parent = scope.rpartition("/")[0]
    for exact in (scope, parent):
        if exact and exact in scopes:
            return scopes[exact][0]
    while scope and scope not in scopes:
        scope = scope.rpartition("/")[0]
    known, larger = scopes.get(scope, ("", -1))
    return known if known and larger > size else device


def _largest_input(operation):
    """(device, size) of the largest input that is somewhere."""
    device, largest = "", -1
    for tensor in operation.inputs:
        size = _size(tensor)
        if size > largest:
            place = place_of(tensor)
            if place:
                device, largest = place, size
    return device, largest


def _size(tensor):
    """Elements, where an unknown dimension (the batch) counts as many."""
    if tensor.shape.rank is None:
        return 1 << 20
    size = 1
    for length in tensor.shape:
        size *= 1024 if length is None else length
    return size


def place_of(tensor):
    """The device on which a tensor of a graph is made, "" if any will do.

    Args:
      tensor: A symbolic tensor. One that a function has captured is where the
        captured one is: a variable's handle is where the variable is.
    """
    operation = tensor.op
    if operation.device:
        return operation.device
    if operation.type == "ReadVariableOp":
        return place_of(operation.inputs[0])
    if operation.type == "Placeholder":
        return _place_of_captured(tensor)
    return ""


def _place_of_captured(tensor):
    for outer, inner in getattr(tensor.graph, "captures", ()):
        if inner is tensor:
            if hasattr(outer, "numpy"):  # An eager tensor or handle.
                return outer.device or ""
            return place_of(outer)
    return ""
