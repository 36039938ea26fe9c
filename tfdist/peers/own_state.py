"""State that steps assign, such as moving statistics, and that must be finite.

It is each worker's own, and is assigned before anybody knows whether the step
counts. If it does not, the state gets back the values that it had before.
"""

import tensorflow as tf

from tfdist.all_reduce import branches


def floats(assigned):
    """Builds the values of state that may have NaN or Inf.

    Args:
      assigned: Pairs of a `WorkerVariable` and its value before the step.

    Returns:
      Two tuples: tensors, and names of the variables.
    """
    found = [state for state, _ in assigned if state.dtype.is_floating]
    values = tuple(state.read_value() for state in found)
    return values, tuple(state.name for state in found)


def checked(check, values, names):
    """Builds the check of values alone; see `FiniteCheck.checked`.

    Args:
      check: The `FiniteCheck`.
      values: From `floats`.
      names: The same.

    Returns:
      Whether all are finite, a scalar bool tensor.
    """
    if not values:
        return tf.constant(True)
    _, finite = check.checked(
        list(values), list, names, lambda tensors: [*map(tf.identity, tensors)]
    )
    return finite


def restore_unless(counts, assigned):
    """Builds the assignment of the values before a step that does not count.

    Args:
      counts: Whether it does, a scalar bool tensor.
      assigned: As of `floats`.
    """
    if not assigned:
        return
    handles = [state.handle for state, _ in assigned]
    befores = [before for _, before in assigned]

    def restore(*tensors):
        pairs = zip(
            tensors[: len(handles)], tensors[len(handles) :], strict=True
        )
        for handle, before in pairs:
            tf.raw_ops.AssignVariableOp(resource=handle, value=before)
        return []

    if tf.executing_eagerly():
        if not counts:
            restore(*handles, *befores)
        return
    branches.choose(counts, lambda *tensors: [], restore, [*handles, *befores])
