"""The other worker with which one averages next."""

import tensorflow as tf


def build_neighbour(seed, number, candidates):
    """Builds the draw of a neighbour, each with the same probability.

    Args:
      seed: int, of this worker.
      number: Scalar int64, of the draw.
      candidates: `[n]` int64, numbers of workers; at least one.

    Returns:
      One of them.
    """
    place = tf.random.stateless_uniform(
        [],
        tf.stack([tf.constant(seed, tf.int64), number]),
        maxval=tf.size(candidates),
        dtype=tf.int32,
    )
    return tf.gather(candidates, place)
