"""Vectors in blocks of so many elements, and eight bits in a byte."""

import tensorflow as tf

_WEIGHTS = [1, 2, 4, 8, 16, 32, 64, 128]


def split(vector: tf.Tensor, block: int) -> tf.Tensor:
    """Returns `[blocks, block]`, with zeros after the last element.

    Args:
      vector: `[size]`, of a static size.
      block: Elements.
    """
    padded = tf.pad(vector, [[0, -vector.shape[0] % block]])
    return tf.reshape(padded, [-1, block])


def join(rows: tf.Tensor, size: int) -> tf.Tensor:
    """Returns the vector that `split` was given.

    Args:
      rows: `[blocks, block]`.
      size: Elements of the vector.
    """
    return tf.reshape(rows, [-1])[:size]


def lengths(size: int, block: int, dtype: tf.DType) -> tf.Tensor:
    """Returns the elements of each block that are not zeros of `split`.

    Args:
      size: Elements of the vector.
      block: Elements of a block.
      dtype: Of the result, `[blocks, 1]`.
    """
    blocks = -(-size // block)
    begins = tf.range(blocks)[:, None] * block
    return tf.cast(tf.minimum(size - begins, block), dtype)


def pack(bits: tf.Tensor) -> tf.Tensor:
    """Returns bytes with eight bits each, the first lowest.

    Args:
      bits: bool, of any shape; the number of elements is a multiple of 8.
    """
    rows = tf.cast(tf.reshape(bits, [-1, 8]), tf.uint8)
    return tf.reduce_sum(rows * tf.constant(_WEIGHTS, tf.uint8), 1)


def unpack(data: tf.Tensor) -> tf.Tensor:
    """Returns the bits that `pack` was given, a bool vector."""
    rows = tf.bitwise.bitwise_and(
        data[:, None], tf.constant(_WEIGHTS, tf.uint8)
    )
    return tf.reshape(rows, [-1]) > 0
