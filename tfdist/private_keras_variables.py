"""Inspection of Keras's call stack: the call that makes or saves a variable.

Keras does not tell a strategy who makes a variable or asks for a reduction, or
whether a variable is read only to be saved. The frames of the calls under way
show it, as `private_keras_calls` reads them.

All names that it relies on are in `_VALUES`, `_SAVING` and `SAVING_CALLS`.
`check` compares them with the installed Keras when a strategy is made, and
refuses a Keras that lacks one: the chief's file would be overwritten without a
word. `tests/private_keras_variables_test.py` has a canary for each function.
"""

import functools
import importlib
import inspect
import os
from typing import NamedTuple

import keras

from tfdist import private_keras_calls

# The method of a variable that is given its initializer.
_INITIALIZES = "_initialize_with_initializer"
# The method of a variable that makes its value.
_MAKES_VALUE = "_initialize"
# The method that does so for a variable whose creation was put off.
_PUT_OFF = "_deferred_initialize"
# These methods of `keras.Variable`, and the local variables of each that are
# read here.
_VALUES = {_INITIALIZES: ("initializer",), _MAKES_VALUE: (), _PUT_OFF: ()}
# What writes models and their variables to files.
_SAVING = (
    "keras.src.saving.",
    "keras.src.export.",
    "tensorflow.python.checkpoint.",
    "tensorflow.python.saved_model.",
)
# What writes files, by module and name: what it is in public, and the
# argument that says where to.
SAVING_CALLS = {
    ("keras.src.saving.saving_lib", "save_model"): (
        "keras.saving.save_model",
        "filepath",
    ),
    ("keras.src.saving.saving_lib", "save_weights_only"): (
        "keras.saving.save_weights",
        "filepath",
    ),
    ("keras.src.legacy.saving.legacy_h5_format", "save_model_to_hdf5"): (
        "keras.saving.save_model",
        "filepath",
    ),
    # `tf.saved_model.save` calls it as well.
    ("tensorflow.python.checkpoint.checkpoint", "save"): (
        "tf.train.Checkpoint.save",
        "file_prefix",
    ),
}


class SavingCall(NamedTuple):
    """A call that writes a model or a checkpoint to files.

    Attributes:
      name: Its public name, such as "keras.saving.save_model".
      path: The path that it writes to.
      variables: The model's Keras variables; empty without a model.
    """

    name: str
    path: str | os.PathLike
    variables: list


class Making(NamedTuple):
    """A Keras variable that is being made.

    Attributes:
      variable: The `keras.Variable`; it has a path and a shape.
      initializer: What makes its values: a callable of shape and dtype.
    """

    variable: keras.Variable
    initializer: object


@functools.cache
def check():
    """Refuses a Keras that lacks a name that this file relies on.

    Raises:
      RuntimeError: It lacks one; the message names it.
    """
    missing = []
    for method, names in _VALUES.items():
        function = getattr(keras.Variable, method, None)
        if function is None:
            missing.append(f"`keras.Variable.{method}`")
            continue
        missing += [
            f"the local variable `{name}` of `keras.Variable.{method}`"
            for name in names
            if name not in function.__code__.co_varnames
        ]
    for name in _SAVING:
        if not _parts_of(name.rstrip(".")):
            missing.append(f"the module `{name.rstrip('.')}`")
    for (module, name), (_, argument) in SAVING_CALLS.items():
        if argument not in _arguments(module, name):
            missing.append(f"`{name}` of `{module}` with `{argument}`")
    if missing:
        raise private_keras_calls.unknown_keras(", ".join(missing))


def variable_maker():
    """Returns the object that is creating a variable, or None.

    A `keras.optimizers.Optimizer`, a `keras.Layer` whose `add_weight` it is,
    or the `keras.Variable` whose creation Keras has put off until the layers
    of a model were traced. Keras tells a strategy only of a variable, and the
    state of an RNN or a seed is the worker's own.
    """
    for frame in private_keras_calls.frames():
        caller = private_keras_calls.self_of(frame)
        method = frame.f_code.co_name
        if isinstance(caller, keras.optimizers.Optimizer):
            return caller
        if method == "add_weight" and isinstance(caller, keras.Layer):
            return caller
        if method == _PUT_OFF:
            return caller
    return None


def layers_under_way(kind=keras.Layer):
    """Returns the layers or models of a kind whose methods are under way.

    The layer in which Keras makes a variable that it has put off is a part of
    one of them.

    Args:
      kind: A subclass of `keras.Layer`.

    Returns:
      A list of objects of this class, the innermost call first.
    """
    callers = map(private_keras_calls.self_of, private_keras_calls.frames())
    return [caller for caller in callers if isinstance(caller, kind)]


def variable_being_made():
    """Returns the `keras.Variable` whose value is being created, or None.

    A strategy is asked for a `tf.Variable`, whose `trainable` never changes.
    Whether Keras trains it depends on the Keras variable.
    """
    for frame in private_keras_calls.frames():
        variable = private_keras_calls.self_of(frame)
        if frame.f_code.co_name == _MAKES_VALUE and isinstance(
            variable, keras.Variable
        ):
            return variable
    return None


def making():
    """Returns the `Making` of the Keras variable that is being created.

    A strategy is handed a function that makes all its values at once.

    Returns:
      A `Making`; None for a variable that is made of a value.
    """
    for frame in private_keras_calls.frames():
        variable = private_keras_calls.self_of(frame)
        if frame.f_code.co_name == _INITIALIZES and isinstance(
            variable, keras.Variable
        ):
            return Making(
                variable, private_keras_calls.local_of(frame, "initializer")
            )
    return None


def optimizer_under_way():
    """Returns the innermost optimizer that is being called, or None."""
    callers = map(private_keras_calls.self_of, private_keras_calls.frames())
    kind = keras.optimizers.Optimizer
    return next((one for one in callers if isinstance(one, kind)), None)


def is_saving():
    """Whether the caller is being run to save a model or its variables.

    Keras and TensorFlow save variable by variable, and do not announce it.
    """
    return any(
        private_keras_calls.module_of(frame).startswith(_SAVING)
        for frame in private_keras_calls.frames()
    )


def saving_call():
    """Returns the `SavingCall` under way, or None.

    As `is_saving`; a model that is pickled or copied is not being saved.
    """
    for frame in private_keras_calls.frames():
        known = SAVING_CALLS.get(
            (private_keras_calls.module_of(frame), frame.f_code.co_name)
        )
        if known is None:
            continue
        path = private_keras_calls.local_of(frame, known[1])
        if isinstance(path, str | os.PathLike):
            model = private_keras_calls.local_of(frame, "model")
            return SavingCall(known[0], path, getattr(model, "variables", []))
    return None


def _parts_of(module):
    """Returns the namespace of a module, a dict; empty without the module."""
    try:
        return vars(importlib.import_module(module))
    except ImportError:
        return {}


def _arguments(module, name):
    """Returns names of the arguments of a function or method of a module."""
    parts = _parts_of(module)
    owners = [parts, *(vars(x) for x in parts.values() if inspect.isclass(x))]
    functions = [
        inspect.unwrap(owner[name]) for owner in owners if name in owner
    ]
    return {
        argument
        for function in functions
        if getattr(function, "__module__", None) == module
        for argument in inspect.signature(function).parameters
    }
