"""A saved state as another arrangement of the same variables has it.

With local steps an optimizer's step counter and slots are each worker's own,
and the servers have an outer optimizer. So a run that is taken up with
local steps, and was saved without, or the reverse, has the same variables in
other places.
"""

import collections
import dataclasses

from tfdist.runtime.variables.variables import Role
from tfdist.runtime.variables.variables import plain_name

_MODEL = (Role.PARAMETER.value, Role.STATE.value)
# Where optimizers act on replicas, those on servers have these alone.
_OUTER = (Role.ITERATIONS.value, Role.SLOT.value)
_COUNTERS = (Role.ITERATIONS.value, Role.CLOCK.value)


def rearranged(saved, variables, local_variables):
    """A saved state as variables are arranged here.

    Models and step counters are matched by their order, slots and what belongs
    to one worker by their names without the numbers that Keras gives.

    Args:
      saved: A `SavedState`.
      variables: Signatures of the variables here, a list as in its header.
      local_variables: The same of the worker's own variables.

    Returns:
      A `SavedState` with what means the same here; None if the models are not
      the same.
    """
    theirs = _places(saved.header["variables"], saved.header["locals"])
    mine = _places(variables, local_variables)
    arrays = {}
    for key, (name, signature) in mine.items():
        if key[0] == "model" and key not in theirs:
            return None
        there, other = theirs.get(key, (None, signature))
        if signature[2:] != list(other)[2:]:
            if key[0] != "slot":
                return None
        elif there in saved.arrays:
            arrays[name] = saved.arrays[there]
    header = {
        **saved.header,
        "variables": variables,
        "locals": local_variables,
    }
    return dataclasses.replace(saved, header=header, arrays=arrays)


def _places(variables, local_variables):
    """Array and signature of each variable, a dict by what it is."""
    with_local_steps = any(
        v is not None and v[1] == Role.CLOCK.value for v in variables
    )
    counts = collections.Counter()
    found = {}

    def add(kind, what, array, signature):
        # The first of its kind, the second, and so on.
        found[kind, what, counts[kind, what]] = array, signature
        counts[kind, what] += 1

    # None of variables that are gone.
    for number, signature in enumerate(variables):
        if signature is None:
            continue
        name, role = signature[:2]
        if with_local_steps and role in _OUTER:
            continue
        array = f"variable/{number}"
        if role in _MODEL:
            add("model", role, array, signature)
        elif role in _COUNTERS:
            add("counter", "", array, signature)
        else:
            add("slot", plain_name(name), array, signature)
    for number, signature in enumerate(local_variables):
        if signature is None:
            continue
        add("slot", plain_name(signature[0]), f"local/{number}", signature)
    return found
