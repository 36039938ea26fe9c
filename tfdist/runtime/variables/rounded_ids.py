"""Finds ids of rows that have been rounded on their way to a look-up.

Keras casts the inputs of a model to the type of its `keras.Input`, which is
the compute dtype where nobody said another: a `Sequential` without
`keras.Input` makes floats of ids. `Embedding` then makes integers of them
again, but the large ones are not what they were.
"""

import tensorflow as tf

# The integers up to 2^n are exact, with n digits of the mantissa.
_DIGITS = {tf.float32: 24, tf.bfloat16: 8, tf.float16: 11}

# Operations that hand integers on, by the number of the input that has them.
_PASSING = {
    "Cast": 0,
    "ExpandDims": 0,
    "GatherV2": 0,
    "Identity": 0,
    "Reshape": 0,
    "Select": 2,
    "SelectV2": 2,
    "SparseFillEmptyRows": 1,
    "Squeeze": 0,
    "StopGradient": 0,
    "Unique": 0,
}


def check(ids, rows, name):
    """Refuses ids that were floats of a type that cannot tell rows apart.

    Only ids in a graph show where they come from.

    Args:
      ids: Integers, a tensor.
      rows: Number of rows of the table, an int.
      name: Of the table, a str.

    Raises:
      ValueError: They were, and nothing says that they were small before.
    """
    narrowest = None
    if tf.is_symbolic_tensor(ids):
        for dtype in _dtypes_of(ids):
            if dtype in _DIGITS:
                narrowest = min(dtype, narrowest or dtype, key=_DIGITS.get)
            elif narrowest and _digits(dtype) <= _DIGITS[narrowest]:
                return
    if narrowest and rows - 1 > 2 ** _DIGITS[narrowest]:
        raise ValueError(
            f"Ids of the table {name!r} must be integers all the way from the "
            "data to the look-up: begin the model with keras.Input(shape, "
            "dtype='int32'), also a Sequential (without it, Keras casts the "
            f"model's inputs to floats). Received: ids that were cast from "
            f"{narrowest.name}, in which integers above "
            f"{2 ** _DIGITS[narrowest]:,} are rounded; the table has "
            f"{rows:,} rows"
        )


def _dtypes_of(tensor):
    """Yields the type of a tensor, and those that it had before."""
    yield tensor.dtype
    while (place := _PASSING.get(tensor.op.type)) is not None:
        tensor = tensor.op.inputs[place]
        yield tensor.dtype


def _digits(dtype):
    """Digits of the largest integer of a type; many, if it has none."""
    if dtype == tf.bool:
        return 1
    return int(dtype.max).bit_length() if dtype.is_integer else 64
