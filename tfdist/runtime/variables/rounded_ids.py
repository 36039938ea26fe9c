"""Finds ids that have been rounded or cut off on their way to a look-up.

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
# Of these, the ones that change no shape.
_ALIKE = ("Cast", "Identity", "StopGradient")
# Those that take some, by the names of their inputs and attributes.
_TAKING = {
    "Slice": (("input", "begin", "size"), ()),
    "Split": (("axis", "value"), ("num_split",)),
    "StridedSlice": (
        ("input", "begin", "end", "strides"),
        (
            "begin_mask",
            "end_mask",
            "ellipsis_mask",
            "new_axis_mask",
            "shrink_axis_mask",
        ),
    ),
    "Unpack": (("value",), ("num", "axis")),
}
# Their input of which they take some.
_WHOLE = ("input", "value")
# Those that put several inputs together, by the slice of the inputs.
_JOINING = {"ConcatV2": slice(0, -1), "Pack": slice(None)}


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
    all_forms = [_narrowest(forms) for forms, _ in _ways_of(ids)]
    known = [dtype for dtype in all_forms if dtype]
    narrowest = min(known, key=_DIGITS.get, default=None)
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


def checked(ids, name):
    """Returns ids of a dynamic table, which refuse to be others' when they run.

    Any integer is an id there, and two that are rounded to one would share a
    row. Small ids are exact as floats, and as short integers.

    Args:
      ids: Integers, a tensor.
      name: Of the table, a str.

    Returns:
      A tensor like `ids`.
    """
    checks = []
    for forms, part in _ways_of(ids):
        if (narrowest := _narrowest(forms)) is not None:
            bound = 2 ** _DIGITS[narrowest]
            if int(part.dtype.max) >= bound:
                checks.append(_assert(part, bound, narrowest, name))
        for short, long in zip(forms, forms[1:], strict=False):
            both = short.dtype.is_integer and long.dtype.is_integer
            if both and short.dtype.size < long.dtype.size:
                bound = int(short.dtype.max) + 1
                checks.append(_assert(long, bound, short.dtype, name))
    if not checks:
        return ids
    with tf.control_dependencies(checks):
        return tf.identity(ids)


def _assert(ids, bound, dtype, name):
    """Builds the check that integers are below a bound, and above its negative.

    Args:
      ids: The integers.
      bound: int.
      dtype: The type that cannot tell larger ones apart, for the message.
      name: Of the table, a str.
    """
    fits = ids < bound
    if not ids.dtype.is_unsigned:
        fits &= ids > -bound
    return tf.debugging.Assert(
        tf.reduce_all(fits),
        [
            f"Ids of the dynamic table {name!r} must be of one type all the "
            "way from the data to the look-up: begin the model with "
            "keras.Input(shape, dtype='int64'), and make the data integers; "
            "ids that are computed from floats must be computed in float64. "
            f"They were {dtype.name} on the way, which does not tell all "
            f"integers from {bound:,} on apart. Received:",
            tf.boolean_mask(ids, ~fits),
        ],
    )


def _narrowest(forms):
    """The type of floats with the fewest digits that integers have been.

    Args:
      forms: List of `_ways_of`.

    Returns:
      A `tf.DType`; None where they were none, or were smaller before.
    """
    narrowest = None
    for dtype in (form.dtype for form in forms):
        if dtype in _DIGITS:
            narrowest = min(dtype, narrowest or dtype, key=_DIGITS.get)
        elif narrowest and _digits(dtype) <= _DIGITS[narrowest]:
            return None
    return narrowest


def _ways_of(tensor):
    """The ways by which integers have come to a tensor.

    Returns:
      A list of pairs: a list of the tensor and what it was before (of that
      only what has come to it, where an operation has taken some), and the
      integers of the tensor that have come by this way. None where no graph
      shows it.
    """
    if not tf.is_symbolic_tensor(tensor):
        return []
    forms, takes = [tensor], []
    while True:
        op = tensor.op
        if op.type in _TAKING:
            takes.append(tensor)
            names, _ = _TAKING[op.type]
            (place,) = [k for k, name in enumerate(names) if name in _WHOLE]
            tensor = op.inputs[place]
        elif op.type in (_ALIKE if takes else _PASSING):
            tensor = op.inputs[_PASSING[op.type]]
            before = tensor
            for take in reversed(takes):
                before = _take_again(take, before)
            forms.append(before)
        elif op.type in _JOINING and not takes:
            return [
                (forms + way, part)
                for joined in op.inputs[_JOINING[op.type]]
                for way, part in _ways_of(joined)
            ]
        else:
            return [(forms, forms[0])]


def _take_again(take, whole):
    """Takes of a tensor what an operation of `_TAKING` takes of another one.

    Args:
      take: What the operation has taken, a tensor.
      whole: A tensor of the shape of the operation's input.
    """
    op = take.op
    names, attributes = _TAKING[op.type]
    arguments = dict(zip(names, op.inputs, strict=True))
    arguments = {k: whole if k in _WHOLE else v for k, v in arguments.items()}
    arguments.update({name: op.get_attr(name) for name in attributes})
    taken = getattr(tf.raw_ops, op.type)(**arguments)
    return taken if tf.is_tensor(taken) else taken[take.value_index]


def _digits(dtype):
    """Digits of the largest integer of a type; many, if it has none."""
    if dtype == tf.bool:
        return 1
    return int(dtype.max).bit_length() if dtype.is_integer else 64
