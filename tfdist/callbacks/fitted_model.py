"""The model and optimizer of a checkpoint, compared with those of a `fit`.

A saved state holds all variables of a process, in the order in which they were
made. Its header says which of them `fit` has trained, so that a checkpoint of
another model, or of another optimizer with variables of the same shapes, is
refused.
"""

import dataclasses
import re

from tfdist import model_optimizers
from tfdist.saved_state import ModelMismatchError

KEY = "fitted"
_OF_VARIABLE = re.compile(
    r"(?:variable|table|ahead|local_steps(?:/own|/anchor)?"
    r"|(?:own_)?correction/[^/]+)/(\d+)(?=/|$)"
)


def describe(model, state):
    """Describes what `fit` trains, for the header of a saved state.

    Args:
      model: The compiled `keras.Model`.
      state: The strategy's state.

    Returns:
      A dict that JSON can hold. `weights` and `slots` are lists of number (see
      `TrainingState.numbers_of`), name, type and shape; `slots` are all
      variables of the optimizer. `arrays` lists arrays of all variables of the
      model and of its optimizers (see `TrainingState.arrays_of`). `optimizer`
      lists the names of its class and of the classes of optimizers within it.
    """
    weights = list(model.weights)
    paths = sorted((w.path.replace("/", "_") for w in weights), key=len)
    optimizer = model.optimizer
    slots = [] if optimizer is None else optimizer.variables
    optimizers = model_optimizers.optimizers_of(model)
    state_of_optimizers = [v for one in optimizers for v in one.variables]
    return {
        "local_steps": repr(
            getattr(model.distribute_strategy, "local_steps", None)
        ),
        "weights": _entries(weights, [w.path for w in weights], state),
        "optimizer": _classes(optimizer),
        "slots": _entries(slots, [_kind(v.name, paths) for v in slots], state),
        "arrays": state.arrays_of(
            [v.value for v in (*model.variables, *state_of_optimizers)],
            optimizers,
        ),
    }


def check(saved, model, state):
    """Raises an error if a saved state is of another model or optimizer.

    The optimizer may be an earlier one than that of the saved state: a script
    may compile a model again between two calls of `fit`.

    Args:
      saved: A `SavedState`.
      model: The compiled `keras.Model`.
      state: The strategy's state.

    Raises:
      ModelMismatchError: The saved state is of another one.
    """
    there = saved.header.get(KEY)
    if there is None:
        return  # Of an earlier version of tfdist.
    here = describe(model, state)
    difference = _of_weights(here, there) or _of_optimizers(here, there)
    if difference is not None:
        raise ModelMismatchError(
            "The checkpoint is of another model or optimizer. First "
            f"difference, {difference}. Use another directory for each model."
        )


def without_others(saved, headers):
    """Returns a saved state without models that have gone on since.

    A script that trains one model after the other saves both with each. Of
    another one than the state is of, what is there now is newer.

    Args:
      saved: A `SavedState`.
      headers: Of the states that this process has saved or restored, a list.

    Returns:
      The `SavedState`, without the weights and slots of models that share no
      weight with its own.
    """
    fitted = [header[KEY] for header in headers if KEY in header]
    if KEY not in saved.header:
        return saved
    own = _by_number(saved.header[KEY]["weights"])
    others = [
        there
        for there in fitted
        if not own.keys() & _by_number(there["weights"])
    ]
    numbers = {
        number
        for there in others
        for number in _by_number(there["weights"] + there["slots"])
    }
    known = {name for there in others for name in there.get("arrays", ())}
    arrays = {
        name: array
        for name, array in saved.arrays.items()
        if not (_is_of(name, numbers) or _place(name) in known)
    }
    return dataclasses.replace(saved, arrays=arrays, is_partial=bool(others))


def _is_of(name, numbers):
    """Whether an array of a saved state is of one of some variables."""
    found = _OF_VARIABLE.match(name)
    return found is not None and int(found[1]) in numbers


def _place(name):
    """Kind and number of an array of a saved state."""
    return "/".join(name.split("/")[:2])


def check_is_known(header, model, state):
    """Raises an error if a checkpoint of this process is of another model.

    Args:
      header: The header of the state that this process has saved or restored.
      model: The `keras.Model`.
      state: The strategy's state.

    Raises:
      ModelMismatchError: No weight of the model is in the checkpoint.
    """
    there = header.get(KEY)
    if there is None:
        return
    here = _by_number(describe(model, state)["weights"])
    known = _by_number(there["weights"])
    if here and not here.keys() & known.keys():
        raise ModelMismatchError(
            "The checkpoint is of another model of this process, which began "
            f"with {_text(min(known.items())[1])}; this one begins with "
            f"{_text(min(here.items())[1])}. Use another directory for each "
            "model."
        )


def _entries(variables, names, state):
    numbers = state.numbers_of([v.value for v in variables])
    return [
        [number, name, str(variable.dtype), list(variable.shape)]
        for variable, name, number in zip(
            variables, names, numbers, strict=True
        )
    ]


def _kind(name, paths):
    """Name of an optimizer's variable without that of the weight it is for."""
    for path in reversed(paths):
        if name.startswith(f"{path}_"):
            return name.removeprefix(f"{path}_")
    return name


def _classes(optimizer):
    found = []
    while optimizer is not None:
        found.append(optimizer.__class__.__name__)
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return found


def _by_number(entries):
    return {entry[0]: entry for entry in entries if entry[0] is not None}


def _of_weights(here, there):
    """Returns the first difference between two models, a str or None."""
    if here["local_steps"] != there["local_steps"]:
        # Numbers differ: with local steps there are other variables besides.
        mine = dict(enumerate(here["weights"]))
        theirs = dict(enumerate(there["weights"]))
        last = len(theirs)
    else:
        mine = _by_number(here["weights"])
        theirs = _by_number(there["weights"])
        # Some may have been added to the model after this call of `fit`.
        last = max(mine, default=-1)
    for number in sorted({*mine, *(k for k in theirs if k < last)}):
        one, other = mine.get(number), theirs.get(number)
        if one is None or other is None or one[2:] != other[2:]:
            return f"a weight: here {_text(one)}; saved {_text(other)}"
    return None


def _of_optimizers(here, there):
    """Returns the first difference between optimizers, a str or None."""
    if here["local_steps"] != there["local_steps"]:
        return None
    mine, theirs = _by_number(here["slots"]), _by_number(there["slots"])
    if mine and theirs and max(mine) < min(theirs):
        return None  # That one is compiled later in this script.
    if here["optimizer"] != there["optimizer"]:
        return (
            f"the optimizer: here {_nested(here['optimizer'])}; saved "
            f"{_nested(there['optimizer'])}"
        )
    number = max(len(here["slots"]), len(there["slots"]))
    for k in range(number):
        one, other = (
            found["slots"][k] if k < len(found["slots"]) else None
            for found in (here, there)
        )
        if one is None or other is None or one[1:] != other[1:]:
            return (
                f"variable {k} of the optimizer: here {_text(one)}; saved "
                f"{_text(other)}"
            )
    return None


def _nested(classes):
    return " of ".join(classes) or "none"


def _text(entry):
    if entry is None:
        return "none"
    _, name, dtype, shape = entry
    return f"{name!r} {dtype} {shape}"
