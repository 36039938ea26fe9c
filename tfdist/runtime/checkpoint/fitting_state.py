"""The part of a saved state that fits the variables and methods at work."""

import dataclasses

from absl import logging

from tfdist import variable_names
from tfdist.runtime.checkpoint import local_state
from tfdist.runtime.checkpoint import saved_layout
from tfdist.runtime.corrections import saved_slots
from tfdist.runtime.replicas.first_values import ModelMismatchError
from tfdist.runtime.variables.variables import Role

# What is measured is of this run, not of the training.
_MEASURED = "local_steps_per_second"
_TABLE = Role.TABLE.value
# Prefixes of the arrays of a method, by its name in the header.
_ARRAYS = {
    "correction": (saved_slots.ON_SERVERS, saved_slots.ON_WORKER),
    "local_steps": (local_state.PREFIX,),
}


def of(saved, store, methods):
    """Returns a saved state as variables are arranged here.

    Args:
      saved: A `SavedState`.
      store: The `ParameterStore`.
      methods: The correction and the local steps at work, a dict as in the
        header of a state.

    Returns:
      A `SavedState`, without the arrays of other methods.

    Raises:
      ModelMismatchError: It is of other variables.
    """
    saved = _arranged(saved, store, methods)
    arrays = dict(saved.arrays)
    for what, mine in methods.items():
        there = saved.header[what]
        if there == mine:
            continue
        left = [name for name in arrays if name.startswith(_ARRAYS[what])]
        if left:
            logging.warning(
                "The saved state is of %s=%s, here it is %s: what it "
                "holds of that method is left out.",
                what,
                there,
                mine,
            )
        for name in left:
            del arrays[name]
    return dataclasses.replace(saved, arrays=arrays)


def _arranged(saved, store, methods):
    difference = _first_difference(saved, store)
    if difference is None:
        return saved
    mine, there = methods["local_steps"], saved.header["local_steps"]
    if mine != there:
        found = saved_layout.rearranged(
            saved, signatures(store.variables), signatures(store.locals)
        )
        if found is not None:
            logging.warning(
                "The saved state is of local_steps=%s, here it is %s. "
                "Taken are the model, step counts and the slots of the "
                "same optimizer; what local steps and corrections keep "
                "starts afresh, and so does an outer optimizer.",
                there,
                mine,
            )
            return found
    raise ModelMismatchError(
        "The saved state is of another model or optimizer. First "
        f"difference, {difference}. Saved with "
        f"{_methods_of(saved.header)}; here {_methods_of(methods)}."
    )


def _first_difference(saved, store):
    here = {"variables": store.variables, "locals": store.locals}
    for kind, variables in here.items():
        known = saved.header[kind]
        for number, variable in variables.items():
            there = known[number] if number < len(known) else None
            mine = _signature(variable)
            if there is None or is_measured(variable):
                continue
            if mine[1:] != list(there)[1:]:
                text = f"number {number} of {kind}: here {mine}; saved {there}"
                if (mine[1] == _TABLE) != (there[1] == _TABLE):
                    text += " (saved with another `table_bytes`?)"
                return text
    return None


def is_of_model(saved):
    """Whether a `SavedState` has more than what Keras does not know of."""
    return any(
        signed[1] == Role.PARAMETER.value and f"variable/{k}" in saved.arrays
        for k, signed in enumerate(saved.header["variables"])
        if signed is not None
    )


def arrays_of(runtime, variables, optimizers):
    """Names of the arrays of a model's variables in a saved state.

    Args:
      runtime: The `Runtime`.
      variables: List of the model's and its optimizers' variables.
      optimizers: Its optimizers; their outer optimizers have variables, too.

    Returns:
      A list of names, without what follows the number.
    """
    columns = [
        column
        for variable in variables
        for column in getattr(variable, "columns", {}).values()
    ]
    outer = [
        variable
        for optimizer in optimizers
        for variable in runtime.local.outer_variables(optimizer)
    ]
    every = [*variables, *columns, *outer]
    numbers = {
        id(variable): number
        for number, variable in runtime.store.locals.items()
    }
    held = [
        f"{'table' if v.role is Role.TABLE else 'variable'}/{v.ordinal}"
        for v in every
        if getattr(v, "ordinal", None) is not None
    ]
    return held + [f"local/{numbers[id(v)]}" for v in every if id(v) in numbers]


def is_measured(variable):
    """Whether a variable is of this run, and not of the training."""
    return variable_names.leaf(variable.name).endswith(_MEASURED)


def signatures(variables):
    """Returns those of a `VariableList`; None for variables that are gone."""
    there = dict(variables.items())
    return [
        _signature(there[k]) if k in there else None
        for k in range(len(variables))
    ]


def _signature(variable):
    """Name, role, type and shape of a variable, a list for JSON."""
    shape = [int(size) for size in variable.shape_of(None)]
    name = variable.name.split(":")[0]
    return [name, variable.role.value, variable.dtype.name, shape]


def _methods_of(header):
    return ", ".join(f"{k}={header[k]}" for k in _ARRAYS)
