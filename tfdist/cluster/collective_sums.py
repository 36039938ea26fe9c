"""Sums of vectors over the workers of a cluster, by collectives."""

import tensorflow as tf

from tfdist import private_tensorflow

# Smaller vectors take one hop (gather, then a local sum) instead of two.
GATHER_BYTES = 1 << 18


def build(vector, *, device, num_workers, key, tokens=(), seconds=0.0):
    """Builds the sum of all workers' vectors, bit for bit the same on each.

    Args:
      vector: Of the same size and type on all workers.
      device: This worker's CPU.
      num_workers: Number of workers.
      key: Positive int32 that tells which vectors belong together.
      tokens: Resource handles; sums with the same one run one after the other.
      seconds: For the others to come to it; 0 for no bound.

    Returns:
      A tensor like `vector`.
    """
    settings = {
        "group_size": num_workers,
        "group_key": 1,
        "instance_key": key,
        "ordering_token": list(tokens),
        "communication_hint": "ring",
        "timeout_seconds": float(seconds),
        "is_stateless": False,
    }

    def add(vector):
        with tf.device(device):
            if num_bytes(vector) > GATHER_BYTES:
                return tf.raw_ops.CollectiveReduceV2(
                    input=vector, merge_op="Add", final_op="Id", **settings
                )
            rows = tf.raw_ops.CollectiveGatherV2(input=vector[None], **settings)
            rows.set_shape([num_workers, *vector.shape])
            return tf.add_n(tf.unstack(rows))

    # Not inlined: TensorFlow tells messages apart by the round of the loop
    # that they are sent in, and workers need not be in the same one
    # (`steps_per_execution`).
    function = tf.function(
        add,
        autograph=False,
        experimental_attributes=private_tensorflow.STAYS_A_FUNCTION,
    )
    spec = tf.TensorSpec(vector.shape, vector.dtype)
    return function.get_concrete_function(spec)(vector)


def num_bytes(vector):
    """Bytes of a vector, an int."""
    return vector.shape.num_elements() * vector.dtype.size


def bytes_sent(sizes, num_workers):
    """Bytes that a worker sends, and receives, in sums; an int.

    Args:
      sizes: Bytes of the vectors.
      num_workers: Number of workers.
    """
    others = num_workers - 1
    return round(
        sum(
            others * size * (1 if size <= GATHER_BYTES else 2 / num_workers)
            for size in sizes
        )
    )
