"""Inspection of Keras's call stack: the call of a model that is under way.

Keras does not tell a strategy why it calls it: whether a data set is for
training or for validation, whether a model is only being built. Only the frames
of the calls under way show it. This is the last resort, and the one file of the
package that reads local variables of Keras's frames
(`tests/words/architecture_test.py`). `private_keras_variables` reads them with
its functions.

All names that it relies on are in `_VARIABLES`, `_BUILDS` and
`_COMPUTES_SHAPES`. `check` compares them with the installed Keras when a
strategy is made, and refuses a Keras that lacks one: validation data would be
shared out over the workers without a word.
`tests/private_keras_calls_test.py` has a canary for each function.
"""

import dis
import functools
import inspect
import numbers
import sys
from typing import NamedTuple

import keras

from tfdist import private_tensorflow
from tfdist.program_error import ProgramError

_VERSION = tuple(map(int, keras.version().split(".")[:2]))
# As in setup.py: in older ones a metric is not known from what workers share,
# and a step of several is counted as one.
_OLDEST = 3, 12
# The number of the first of the steps that `fit` takes at once.
_STEP = "begin_step"
# The base of what has a `fit`. Keras's own tests put it on a layer.
_TRAINER = [one for one in keras.Model.__mro__ if "fit" in vars(one)][-1]
# Methods of `keras.Model`, and the local variables of each that are read here.
_VARIABLES = {
    "fit": (
        "callbacks",
        "steps_per_epoch",
        "initial_epoch",
        "epoch",
        "epoch_iterator",
        _STEP,
    ),
    "evaluate": ("callbacks",),
    "predict": ("callbacks",),
}
# The method that takes a batch only to build the model.
_BUILDS = "_maybe_symbolic_build"
# Keras's function, and the method of its layers, that call one for its shapes.
_COMPUTES_SHAPES = "compute_output_spec"


class DataRequest(NamedTuple):
    """The reason of a call of `experimental_distribute_dataset`.

    Attributes:
      purpose: "train", "validate" (inside the loop of `fit`), "evaluate"
        (`evaluate` or `predict`), or None where no Keras model is calling.
      call: The frame of that call of the model, or None.
      adapter: The Keras `DataAdapter` of the data; None where the caller is
        not Keras but the user, in a callback or a `fit` of theirs.
    """

    purpose: str | None
    call: object
    adapter: object


@functools.cache
def check():
    """Refuses a Keras that is too old, or lacks a name that is read here.

    Raises:
      ProgramError: It is; or it lacks one, which the message names.
    """
    if _VERSION < _OLDEST:
        raise ProgramError(
            f"tfdist needs Keras {_OLDEST[0]}.{_OLDEST[1]} or newer: with "
            "older versions, metrics and positions in the data would be wrong "
            f"without an error. Received: Keras {keras.version()}"
        )
    missing = []
    for method, names in _VARIABLES.items():
        function = _keras_method(method)
        missing += [
            f"the local variable `{name}` of `keras.Model.{method}`"
            for name in names
            if function is None or name not in function.__code__.co_varnames
        ]
        # The user's callbacks become Keras's `CallbackList` under this name.
        if function is not None and not _assigns(function, "callbacks"):
            missing.append(f"`callbacks = ...` in `keras.Model.{method}`")
    if not hasattr(keras.Model, _BUILDS):
        missing.append(f"`keras.Model.{_BUILDS}`")
    # The first of the methods calls the function, and the others call it.
    methods = [vars(one).get(_COMPUTES_SHAPES) for one in keras.Layer.__mro__]
    methods = [method for method in methods if method is not None]
    if not methods or _COMPUTES_SHAPES not in methods[-1].__code__.co_names:
        missing.append(
            f"`keras.Layer.{_COMPUTES_SHAPES}`, which calls Keras's function "
            "of that name"
        )
    if missing:
        raise unknown_keras(", ".join(missing))


def data_request():
    """Returns why `experimental_distribute_dataset` is being called.

    Keras calls it in the same way for training, validation and prediction.

    Returns:
      A `DataRequest`.

    Raises:
      RuntimeError: Keras calls it in an unknown way.
    """
    call, purpose = _call_of(*_VARIABLES), None
    if call is not None and call.f_code.co_name == "fit":
        is_training = _is_set(call, "epoch_iterator")
        purpose = "validate" if is_training else "train"
    elif call is not None:
        is_training = _is_called_from_fit(call.f_back, model_of(call))
        purpose = "validate" if is_training else "evaluate"
    # The frame that called the strategy.
    asking = next(f for f in frames() if not _is_of(f, "tfdist", "tensorflow"))
    if not _is_of(asking, "keras"):
        return DataRequest(purpose, call, None)
    adapter = getattr(asking.f_locals.get("self"), "data_adapter", None)
    if call is None or adapter is None:
        raise unknown_keras(
            "`fit`, `evaluate` or `predict` of a model and a `data_adapter` "
            f"around `{asking.f_code.co_name}`, which asks for data"
        )
    return DataRequest(purpose, call, adapter)


def model_of(call):
    """Returns the `keras.Model` of a frame of one of its methods."""
    return call.f_locals["self"]


def steps_per_epoch_of(call):
    """Returns the most steps of an epoch of a frame of `fit`, or None.

    The argument `steps_per_epoch`, or Keras's maximum where that is less.
    """
    _is_set(call, "steps_per_epoch")
    given = call.f_locals.get("steps_per_epoch")
    limits = given, keras.config.max_steps_per_epoch()
    return min(filter(None, limits), default=None)


def initial_epoch_of(call):
    """Returns the argument `initial_epoch` of a frame of `fit`, 0 without."""
    return call.f_locals.get("initial_epoch") or 0


def epochs_of(call):
    """Returns the argument `epochs` of a frame of `fit`, 1 without."""
    return call.f_locals.get("epochs", 1)


def has_epochs(call):
    """Whether the arguments of a frame of `fit` leave an epoch to train.

    In a `fit` of the user's own they may be anything.
    """
    first, end = initial_epoch_of(call), epochs_of(call)
    are_numbers = all(isinstance(x, numbers.Integral) for x in (first, end))
    return not are_numbers or first < end


def epoch_of(call):
    """Returns the epoch, from 0, that a frame of `fit` is in."""
    return call.f_locals.get("epoch") or 0


def keras_epoch():
    """Returns the epoch, from 0, of the `fit` under way; of Keras's own alone.

    A `fit` of the user's own may read its data as often as it likes.
    """
    call = fit_under_way()
    if call is None or not _is_of(call, "keras") or not _is_set(call, "epoch"):
        return None
    return epoch_of(call)


def is_before_epochs(call):
    """Whether a frame of Keras's `fit` has not come to its first epoch."""
    return "epoch" not in call.f_locals and "epoch" in call.f_code.co_varnames


def callbacks_of(call):
    """Returns the callbacks of a frame of `fit`, `evaluate` or `predict`.

    Returns:
      Before the loop the user's argument, then Keras's `CallbackList`.
    """
    return call.f_locals.get("callbacks")


def loops_from(frame):
    """Returns the callbacks of Keras's loops that have begun.

    Args:
      frame: The innermost frame of a thread, or None for the caller's.

    Returns:
      List of `keras.callbacks.CallbackList`, one for each `fit`, `evaluate`
      and `predict` under way, the innermost first.
    """
    lists = map(callbacks_of, _calls_of(_VARIABLES, frame))
    return [x for x in lists if isinstance(x, keras.callbacks.CallbackList)]


def evaluation():
    """Returns the frame of the `evaluate` or `predict` under way, or None.

    None within a `fit` that a callback of it calls. Keras tells only
    callbacks that it evaluates.
    """
    call = _call_of(*_VARIABLES)
    return None if call is None or call.f_code.co_name == "fit" else call


def fit_under_way():
    """Returns the frame of the innermost `fit` under way, or None."""
    return _call_of("fit")


def epoch_iterator():
    """Returns Keras's iterator over the data of the `fit` under way, or None.

    A `fit` of the user's own may have none.
    """
    call = fit_under_way()
    if call is None or not _is_set(call, "epoch_iterator"):
        return None
    return call.f_locals["epoch_iterator"]


def compiling_model():
    """Returns the Keras model whose `compile` is under way, or None."""
    call = _call_of("compile")
    return None if call is None else model_of(call)


def is_in_callback():
    """Whether a callback of Keras itself is at work, as EarlyStopping."""
    for frame in frames():
        if isinstance(self_of(frame), keras.callbacks.Callback):
            return _is_of(frame, "keras")
    return False


def current_frame():
    """Returns the frame of the caller, from which calls are found."""
    return sys._getframe(1)


def is_first_step_of_epoch():
    """Whether the `fit` under way is at the first step of an epoch."""
    call = fit_under_way()
    if call is None:
        return False
    return _is_set(call, _STEP) and not call.f_locals[_STEP]


def is_building_model():
    """Whether Keras takes a batch only to build a model.

    It takes it as for an epoch, and throws the iterator away.
    """
    return any(frame.f_code.co_name == _BUILDS for frame in frames())


def is_computing_shapes():
    """Whether Keras calls a layer for shapes, in a graph that never runs."""
    return any(frame.f_code.co_name == _COMPUTES_SHAPES for frame in frames())


def step_of(function):
    """Returns what a function that `strategy.run` is called with does.

    Keras calls it with a step of a model, and nothing says with which.

    Args:
      function: A callable.

    Returns:
      The `keras.Model` and "train", "test" or "predict"; (None, None) for a
      function of the user's.
    """
    # TensorFlow wraps it, for AutoGraph. A method answers for the decorators of
    # its function, beneath which nothing tells of the model.
    function = inspect.unwrap(
        function,
        stop=lambda link: isinstance(
            private_tensorflow.object_of(link), _TRAINER
        ),
    )
    model = private_tensorflow.object_of(function)
    name = getattr(function, "__name__", "")
    if not isinstance(model, _TRAINER):
        # Of Keras before 3.9, where it is a function within a method.
        name = getattr(function, "__qualname__", "")
        try:
            nonlocals = inspect.getclosurevars(function).nonlocals
        except TypeError:
            return None, None
        model = nonlocals.get("self")
    if not isinstance(model, _TRAINER):
        return None, None
    for purpose in ("train", "test", "predict"):
        if f"{purpose}_step" in name or f"make_{purpose}_function" in name:
            return model, purpose
    return model, None


def frames(frame=None):
    """Yields the frames of the calls under way, from the innermost outward.

    Args:
      frame: The first of them, or None for the caller's.
    """
    frame = sys._getframe(1) if frame is None else frame
    while frame is not None:
        yield frame
        frame = frame.f_back


def self_of(frame):
    """Returns the object whose method a frame is, or None.

    Of other frames nothing is read: Python keeps what was read of a frame until
    its call ends, and a program's strategy could not be freed.
    """
    if frame.f_code.co_varnames[:1] != ("self",):
        return None
    return local_of(frame, "self")


def local_of(frame, name):
    """Returns a local variable of a frame; None where it is not assigned."""
    return frame.f_locals.get(name)


def module_of(frame):
    """Returns the name of the module of a frame's function, or ''."""
    return frame.f_globals.get("__name__") or ""


def unknown_keras(missing):
    """Returns the error of a Keras that lacks what tfdist relies on.

    Args:
      missing: The names that it lacks, for the message.

    Returns:
      A `RuntimeError`.
    """
    return RuntimeError(
        f"tfdist does not support Keras {keras.version()}: it relies on "
        f"{missing}, which this version lacks. Install a version of Keras that "
        "tfdist's setup.py allows."
    )


def _calls_of(methods, frame=None):
    """Yields the frames of these methods of models, from the innermost outward.

    Args:
      methods: Their names.
      frame: As of `frames`.
    """
    for one in frames(frame):
        is_named = one.f_code.co_name in methods
        if is_named and isinstance(self_of(one), _TRAINER):
            yield one


def _call_of(*methods):
    """Returns the innermost frame of these methods of models, or None."""
    return next(_calls_of(methods), None)


def _is_of(frame, *packages):
    return module_of(frame).partition(".")[0] in packages


def _is_set(frame, name):
    """Whether a local variable is assigned; refuses a Keras that lacks it.

    A `fit` of the user's own may lack it.
    """
    if _is_of(frame, "keras") and name not in frame.f_code.co_varnames:
        raise unknown_keras(
            f"the local variable `{name}` of `{frame.f_code.co_name}`"
        )
    return name in frame.f_locals


def _is_called_from_fit(frame, model):
    """Whether a `fit` of a model that has its data leads to a frame.

    A `fit` of the user's own may call Keras's, and then go on without it.
    """
    return any(
        model_of(call) is model and _is_set(call, "epoch_iterator")
        for call in _calls_of(("fit",), frame)
    )


def _keras_method(name):
    """Returns Keras's own function behind a method of models, or None.

    Tools that log training wrap it.
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
