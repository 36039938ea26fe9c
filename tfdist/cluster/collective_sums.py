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
    settings = _settings(num_workers, tokens, seconds)

    def add(vector):
        with tf.device(device):
            if num_bytes(vector) > GATHER_BYTES:
                return tf.raw_ops.CollectiveReduceV2(
                    input=vector,
                    merge_op="Add",
                    final_op="Id",
                    instance_key=key,
                    **settings,
                )
            rows = tf.raw_ops.CollectiveGatherV2(
                input=vector[None], instance_key=key, **settings
            )
            rows.set_shape([num_workers, *vector.shape])
            return tf.add_n(tf.unstack(rows))

    return _call(add, vector)


def build_rows(rows, *, device, num_workers, key, tokens):
    """Builds the rows of all workers, in the order of the workers.

    Args:
      rows: Matrix of as many rows on all workers.
      device: This worker's CPU.
      num_workers: Number of workers.
      key: Scalar int32, of its own for each number of rows.
      tokens: As in `build`.

    Returns:
      A matrix of `num_workers` times as many rows.
    """
    settings = _settings(num_workers, tokens, 0.0)

    def gather(rows, key):
        with tf.device(device):
            return tf.raw_ops.CollectiveGatherV2(
                input=rows, instance_key=key, **settings
            )

    gathered = _call(gather, rows, key)
    gathered.set_shape([None, rows.shape[1]])
    return gathered


def _settings(num_workers, tokens, seconds):
    return {
        "group_size": num_workers,
        "group_key": 1,
        "ordering_token": list(tokens),
        "communication_hint": "ring",
        "timeout_seconds": float(seconds),
        "is_stateless": False,
    }


def _call(build_collective, *tensors):
    # Not inlined: TensorFlow tells messages apart by the round of the loop
    # that they are sent in, and workers need not be in the same one
    # (`steps_per_execution`).
    function = tf.function(
        build_collective,
        autograph=False,
        experimental_attributes=private_tensorflow.STAYS_A_FUNCTION,
    )
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in tensors]
    return function.get_concrete_function(*specs)(*tensors)


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
