"""The weights of a model that groups exchange."""

import hashlib

import keras
import numpy as np

from tfdist import variable_names
from tfdist.runtime.variables.variables import Role


def exchanged_variables(model):
    """The variables that make a model's predictions.

    Parameters, and state such as moving statistics; not the states of random
    number generators, which inference does not use.

    Args:
      model: A built `keras.Model`.

    Returns:
      A list of `keras.Variable`, in the order of `model.variables`.
    """
    return [v for v in model.variables if not variable_names.is_seed(v.name)]


def refuse_tables(model):
    """Refuses a model with a table that is on servers alone.

    Args:
      model: A built `keras.Model`.

    Raises:
      ValueError: It has one, which it names.
    """
    for variable in exchanged_variables(model):
        if getattr(variable.value, "role", None) is Role.TABLE:
            raise variable.value.refusal(
                "codistillation, which exchanges whole weights"
            )


def snapshot(model):
    """A copy of the weights, a tuple of `np.ndarray`; float32 for bfloat16."""
    return tuple(
        np.array(as_numpy(variable)) for variable in exchanged_variables(model)
    )


def as_numpy(variable):
    """The value of a Keras variable; NumPy itself has no bfloat16."""
    value = keras.ops.convert_to_numpy(variable)
    if value.dtype.name == "bfloat16":
        return value.astype(np.float32)
    return value


def digest(weights):
    """A string that differs where `weights` do."""
    state = hashlib.sha256()
    for array in weights:
        state.update(str((array.shape, array.dtype)).encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()[:16]


def misfit(model, shapes):
    """The first difference between a model and somebody else's weights.

    Args:
      model: A built `keras.Model`.
      shapes: List of tuples of ints, of the other's exchanged variables.

    Returns:
      A sentence, or None where all fit.
    """
    variables = exchanged_variables(model)
    for number, (variable, shape) in enumerate(
        zip(variables, shapes, strict=False)
    ):
        if tuple(variable.shape) != tuple(shape):
            return (
                f"its variable {number} has shape {tuple(shape)} where "
                f"{variable.path!r} here has {tuple(variable.shape)}"
            )
    if len(variables) != len(shapes):
        return (
            f"it has {len(shapes)} variables, the model here {len(variables)}"
        )
    return None
