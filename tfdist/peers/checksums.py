"""Checksums of updates and replicas: inner products with random signs."""

import numpy as np
import tensorflow as tf

# Units of a checksum in 1.0: it is a whole number, whose sums are exact.
UNITS = 2.0**32
# Elements of which a float64 copy is made at a time.
_BLOCK = 2**20


def signs(size, dtype):
    """Random signs of a vector's elements, the same on all workers.

    Args:
      size: Elements.
      dtype: Of the result.
    """
    drawn = np.random.default_rng(size).integers(0, 2, size, np.int8)
    return tf.constant(2 * drawn - 1, dtype)


def of_update(change, drawn):
    """Builds the checksum of an update, in units, a scalar int64.

    Args:
      change: `[size]`.
      drawn: Its `signs`.
    """
    total = tf.cast(tf.reduce_sum(change * drawn), tf.float64)
    return tf.cast(tf.round(total * UNITS), tf.int64)


def of_replica(vector, drawn):
    """The checksum of parameters, a float.

    Args:
      vector: Array `[size]`.
      drawn: The `signs` of it, an array.
    """
    total = 0.0
    for start in range(0, len(vector), _BLOCK):
        block = slice(start, start + _BLOCK)
        total += np.dot(
            vector[block].astype(np.float64), drawn[block].astype(np.float64)
        )
    return float(total)
