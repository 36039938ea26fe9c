"""Looks at the calls that are under way in Keras, and at their variables.

Keras tells a strategy nothing of why it is called: for what a data set is
asked for, whether a model is being saved or built. Only the frames of the
calls that are under way show it. That is the last resort: no other file of the
package reads the local variables of a frame (`tests/architecture_test.py`).

What is looked for by name is in `_VARIABLES`, `_BUILDS`, `_SAVING` and
`SAVING_CALLS`. `check` compares it with the Keras that is installed, when a
strategy is made, and refuses one that lacks any: data for validation would be
shared out over workers, or a file overwritten, in silence.
"""

import dis
import functools
import importlib
import inspect
import os
import sys
from typing import NamedTuple

import keras

_VERSION = tuple(map(int, keras.version().split(".")[:2]))
# The number of the first of the steps that `fit` takes at once.
_STEP = "begin_step" if _VERSION >= (3, 11) else "step"
# Method of a model, and local variables of it that are read here.
_VARIABLES = {
    "fit": ("callbacks", "steps_per_epoch", "epoch_iterator", _STEP),
    "evaluate": ("callbacks",),
    "predict": ("callbacks",),
}
# The call that takes a batch only to build a model.
_BUILDS = "_maybe_symbolic_build"
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


class DataRequest(NamedTuple):
    """Why a strategy is asked for this worker's share of a data set.

    Attributes:
      purpose: "train", "validate" (inside `fit`), "evaluate" (`evaluate` or
        `predict`), or None where no Keras model is calling.
      call: The frame of that call of the model, or None.
      adapter: The Keras `DataAdapter` of the data; None if not Keras asks but
        the user, in a callback or a `fit` of theirs.
    """

    purpose: str | None
    call: object
    adapter: object


class SavingCall(NamedTuple):
    """A call that writes a model or a checkpoint to files.

    Attributes:
      name: What a user calls, such as "keras.saving.save_model".
      path: Where to.
      variables: Of the model, Keras's; empty where there is none.
    """

    name: str
    path: str | os.PathLike
    variables: list


@functools.cache
def check():
    """Refuses a Keras whose calls cannot be looked at.

    Raises:
      RuntimeError: Something that is looked for here is not there.
    """
    missing = []
    for method, names in _VARIABLES.items():
        function = _keras_method(method)
        missing += [
            f"the local variable `{name}` of `keras.Model.{method}`"
            for name in names
            if function is None or name not in function.__code__.co_varnames
        ]
        # What the user gives becomes Keras's own list under the same name.
        if function is not None and not _assigns(function, "callbacks"):
            missing.append(f"`callbacks = ...` in `keras.Model.{method}`")
    if not hasattr(keras.Model, _BUILDS):
        missing.append(f"`keras.Model.{_BUILDS}`")
    for name in _SAVING:
        if not _parts_of(name.rstrip(".")):
            missing.append(f"the module `{name.rstrip('.')}`")
    for (module, name), (_, argument) in SAVING_CALLS.items():
        if argument not in _arguments(module, name):
            missing.append(f"`{name}` of `{module}` with `{argument}`")
    if missing:
        raise _unknown_keras(", ".join(missing))


def data_request():
    """What a strategy's `experimental_distribute_dataset` is called for.

    Keras calls it in the same way for training, validation and prediction.

    Returns:
      A `DataRequest`.

    Raises:
      RuntimeError: Keras calls, in a way that is not known.
    """
    purpose, call = None, None
    for frame in _frames():
        model = frame.f_locals.get("self")
        method = frame.f_code.co_name
        if method not in _VARIABLES or not isinstance(model, keras.Model):
            continue
        call = frame
        if method == "fit":
            is_training = _is_set(frame, "epoch_iterator")
            purpose = "validate" if is_training else "train"
        else:
            is_training = _is_called_from_fit(frame.f_back, model)
            purpose = "validate" if is_training else "evaluate"
        break
    # Who has called the strategy.
    asking = next(f for f in _frames() if not _is_of(f, "tfdist", "tensorflow"))
    if not _is_of(asking, "keras"):
        return DataRequest(purpose, call, None)
    adapter = getattr(asking.f_locals.get("self"), "data_adapter", None)
    if call is None or adapter is None:
        raise _unknown_keras(
            "a method of a model that asks for data, and its `data_adapter`, "
            f"around `{asking.f_code.co_name}`"
        )
    return DataRequest(purpose, call, adapter)


def model_of(call):
    """The `keras.Model` of the frame of a call of one of its methods."""
    return call.f_locals["self"]


def steps_per_epoch_of(call):
    """The argument `steps_per_epoch` of a call of `fit`, by its frame."""
    _is_set(call, "steps_per_epoch")
    return call.f_locals.get("steps_per_epoch")


def callbacks_of(call):
    """The callbacks of a call of a model's loop, by its frame.

    Returns:
      Before the loop what the user gave, then Keras's `CallbackList`.
    """
    return call.f_locals.get("callbacks")


def loops_from(frame):
    """The loops of Keras that are under way, where there is a first batch.

    Args:
      frame: The innermost of a thread, or None.

    Returns:
      List of their `keras.callbacks.CallbackList`, the innermost loop first.
    """
    lists = [
        callbacks_of(call)
        for call in _frames(frame)
        if call.f_code.co_name in _VARIABLES
        and isinstance(call.f_locals.get("self"), keras.Model)
    ]
    return [x for x in lists if isinstance(x, keras.callbacks.CallbackList)]


def is_first_step_of_epoch():
    """Whether the `fit` that is under way is at the first step of an epoch."""
    for frame in _frames():
        if frame.f_code.co_name == "fit" and isinstance(
            frame.f_locals.get("self"), keras.Model
        ):
            return _is_set(frame, _STEP) and not frame.f_locals[_STEP]
    return False


def is_building_model():
    """Whether Keras takes a batch only to build a model for it.

    It asks for that as for an epoch, and throws the iterator away.
    """
    return any(frame.f_code.co_name == _BUILDS for frame in _frames())


def is_building_optimizer():
    """Whether an optimizer's `build` is creating a variable."""
    return any(
        frame.f_code.co_name == "build"
        and isinstance(frame.f_locals.get("self"), keras.optimizers.Optimizer)
        for frame in _frames()
    )


def calling_models():
    """The Keras models whose methods are under way, a list."""
    return [
        frame.f_locals["self"]
        for frame in _frames()
        if frame.f_code.co_varnames[:1] == ("self",)
        and isinstance(frame.f_locals.get("self"), keras.Model)
    ]


def is_saving():
    """Whether a model or its variables are being saved by whoever calls.

    What Keras or TensorFlow saves they read variable by variable, and tell
    nobody when they begin.
    """
    return any(_module_of(frame).startswith(_SAVING) for frame in _frames())


def saving_call():
    """The `SavingCall` that is under way, or None.

    As for `is_saving`; a model that is pickled or copied is none.
    """
    for frame in _frames():
        known = SAVING_CALLS.get((_module_of(frame), frame.f_code.co_name))
        if known is None:
            continue
        path = frame.f_locals.get(known[1])
        if isinstance(path, str | os.PathLike):
            model = frame.f_locals.get("model")
            return SavingCall(known[0], path, getattr(model, "variables", []))
    return None


def _frames(frame=None):
    """Frames of the calls that are under way, from the innermost outward."""
    frame = sys._getframe(1) if frame is None else frame
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module_of(frame):
    return frame.f_globals.get("__name__") or ""


def _is_of(frame, *packages):
    return _module_of(frame).partition(".")[0] in packages


def _is_set(frame, name):
    """Whether a local variable has a value; refuses a Keras without it.

    A `fit` of the user's own need not have it.
    """
    if _is_of(frame, "keras") and name not in frame.f_code.co_varnames:
        raise _unknown_keras(
            f"the local variable `{name}` of `{frame.f_code.co_name}`"
        )
    return name in frame.f_locals


def _is_called_from_fit(frame, model):
    return frame is not None and any(
        call.f_code.co_name == "fit" and call.f_locals.get("self") is model
        for call in _frames(frame)
    )


def _keras_method(name):
    """Keras's own function behind a method of models, None if not found.

    Tools that log training put functions of theirs around it.
    """
    for one in keras.Model.__mro__:
        function = inspect.unwrap(vars(one).get(name, _keras_method))
        if function.__module__.startswith("keras."):
            return function
    return None


def _assigns(function, name):
    return any(
        instruction.opname.startswith("STORE") and instruction.argval == name
        for instruction in dis.get_instructions(function)
    )


def _parts_of(module):
    """What a module has by names, a dict; empty where there is no module."""
    try:
        return vars(importlib.import_module(module))
    except ImportError:
        return {}


def _arguments(module, name):
    """Names of the arguments of a function or method of a module."""
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


def _unknown_keras(missing):
    return RuntimeError(
        f"tfdist does not know Keras {keras.version()}: it looks for what is "
        f"not there: {missing}. Install a version of Keras that tfdist's "
        "setup.py allows."
    )
