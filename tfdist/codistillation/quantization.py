"""Weights in fewer bytes, for the way from one group to another.

Matrices and kernels are quantised; vectors and scalars (biases, statistics
of normalization) are small and stay exact, and so does all that is not
floating.
"""

import numpy as np

DTYPES = ("float32", "float16", "int8")
"""The formats that weights are sent in; "float32" is as they are."""

LEVELS = 127
LARGEST_HALF = float(np.finfo(np.float16).max)


def check(dtype):
    """Checks the name of a dtype.

    Raises:
      ValueError: It is none of `DTYPES`.
    """
    if dtype not in DTYPES:
        raise ValueError(
            f"Argument `dtype` must be one of {', '.join(DTYPES)}. Received: "
            f"dtype={dtype!r}"
        )


def is_quantised(shape, dtype):
    """Whether a tensor of that shape and dtype is quantised at all."""
    return len(shape) >= 2 and np.dtype(dtype) in (np.float32, np.float64)


def quantise(array, dtype):
    """Returns `array` as it is sent.

    With "int8", `q = round(w / scale)` with one `scale = max|w| / 127` per
    slice of the last axis (a unit's inputs, a filter), so that the error of
    each weight is at most half of its slice's scale.

    Args:
      array: `np.ndarray`.
      dtype: One of `DTYPES`.

    Returns:
      A tuple of `np.ndarray`: one as it is or in half precision, or two:
      int8, and the float32 scales.
    """
    if dtype == "float32" or not is_quantised(array.shape, array.dtype):
        return (array,)
    if dtype == "float16":
        # What overflows would come as infinite.
        largest = np.max(np.abs(array), initial=0.0)
        return (
            (array.astype(np.float16),) if largest < LARGEST_HALF else (array,)
        )
    axes = tuple(range(array.ndim - 1))
    largest = np.max(np.abs(array), axis=axes, initial=0.0)
    scale = (largest / LEVELS).astype(np.float32)
    # Where all are zero any divisor will do.
    divisor = np.where(scale > 0, scale, 1).astype(array.dtype)
    return np.rint(array / divisor).astype(np.int8), scale


def restore(parts, dtype):
    """The weights that `quantise` was given, nearly.

    Args:
      parts: What it returned.
      dtype: NumPy dtype of the weights.

    Returns:
      An `np.ndarray`.
    """
    values, *scale = parts
    if scale:
        return (values.astype(np.float32) * scale[0]).astype(dtype)
    return values.astype(dtype, copy=False)
