"""Rows of sparse gradients, which may come several times in one gradient."""

import tensorflow as tf


def sums(values, indices):
    """Adds up what belongs to the same row.

    Args:
      values: `(n, ...)`.
      indices: `(n,)` integers.

    Returns:
      The numbers of the m different rows, `(m,)`; for each of the n entries
      its place among them, `(n,)`; and their sums, `(m, ...)`.
    """
    rows, places = tf.unique(indices)
    total = tf.math.unsorted_segment_sum(values, places, tf.size(rows))
    return rows, places, total


def are_first(indices):
    """Entries that are the first of their row, a bool vector `(n,)`."""
    numbers = tf.range(tf.size(indices))
    rows, places = tf.unique(indices)
    first = tf.math.unsorted_segment_min(numbers, places, tf.size(rows))
    return tf.equal(numbers, tf.gather(first, places))


def beside(vector, values):
    """`vector`, `(n,)`, in a shape that broadcasts to `values`, `(n, ...)`."""
    return tf.reshape(vector, [-1] + [1] * (values.shape.rank - 1))
