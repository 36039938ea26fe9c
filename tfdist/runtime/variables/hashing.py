"""Hashes of ids, the same on all workers and servers.

The finalizer of splitmix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014): every bit of the result depends
on every bit of the id.
"""

import tensorflow as tf

_INCREMENT = 0x9E3779B97F4A7C15
_FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SHIFTS = 30, 27, 31
_MANTISSA = 53


def mix(ids, salt=0):
    """Hashes integers.

    Args:
      ids: int64 tensor of any shape.
      salt: int, for another hash of the same ids.

    Returns:
      uint64 tensor of the same shape.
    """
    bits = tf.bitcast(ids, tf.uint64)
    bits += tf.constant((_INCREMENT * (salt + 1)) % 2**64, tf.uint64)
    for shift, factor in zip(_SHIFTS, (*_FACTORS, None), strict=True):
        bits = tf.bitwise.bitwise_xor(bits, right_shift(bits, shift))
        if factor is not None:
            bits *= tf.constant(factor, tf.uint64)
    return bits


def right_shift(bits, count):
    """Returns `bits` without the lowest `count` ones; uint64."""
    return tf.bitwise.right_shift(bits, tf.constant(count, tf.uint64))


def below(bits, bound):
    """Returns the remainders of hashes, int64.

    Args:
      bits: uint64 tensor.
      bound: int, of at most 2^53.
    """
    positive = tf.bitcast(right_shift(bits, 1), tf.int64)
    return positive % tf.constant(bound, tf.int64)


def uniform(ids, width, seed, dtype):
    """Returns numbers of [0, 1) that depend on id, column and seed alone.

    Args:
      ids: int64 `(n,)`.
      width: Number of columns, int.
      seed: int.
      dtype: Of the result.

    Returns:
      A tensor `(n, width)`.
    """
    rows = tf.bitcast(mix(ids, seed), tf.int64)[:, None]
    bits = mix(rows + tf.range(width, dtype=tf.int64), 1)
    positive = tf.bitcast(right_shift(bits, 64 - _MANTISSA), tf.int64)
    return tf.cast(tf.cast(positive, tf.float64) * 2.0**-_MANTISSA, dtype)
