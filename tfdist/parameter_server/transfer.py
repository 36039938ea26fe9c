"""Tensors from one device to another, small ones packed together."""

import tensorflow as tf

# Below this many bytes a tensor costs more as a message of its own than as a
# piece of a packed one; above it, the copies of packing cost more (measured
# with benchmarks/exchange.py).
PACK_BELOW_BYTES = 64 * 1024


def num_bytes(tensor):
    """Bytes of `tensor`: an int, or a scalar int64 tensor if unknown."""
    elements = tensor.shape.num_elements()
    if elements is not None:
        return elements * tensor.dtype.size
    return tf.size(tensor, out_type=tf.int64) * tensor.dtype.size


def _is_packable(tensor):
    elements = tensor.shape.num_elements()
    if elements is None or not elements:
        return False
    return elements * tensor.dtype.size < PACK_BELOW_BYTES


def move(tensors, *, source, target):
    """Builds the ops that bring `tensors` to a device.

    Args:
      tensors: List of dense tensors on `source`.
      source: Device name.
      target: Device name.

    Returns:
      A list of tensors on `target`, in the order of `tensors`.
    """
    moved = [None] * len(tensors)
    packs = {}
    for position, tensor in enumerate(tensors):
        if _is_packable(tensor):
            packs.setdefault(tensor.dtype, []).append(position)
        else:
            with tf.device(target):
                moved[position] = tf.identity(tensor)
    for positions in packs.values():
        members = [tensors[position] for position in positions]
        if len(members) == 1:
            with tf.device(target):
                moved[positions[0]] = tf.identity(members[0])
            continue
        with tf.device(source):
            pack = tf.concat([tf.reshape(m, [-1]) for m in members], 0)
        with tf.device(target):
            pack = tf.identity(pack)
            sizes = [m.shape.num_elements() for m in members]
            pieces = tf.split(pack, sizes)
            for position, member, piece in zip(
                positions, members, pieces, strict=True
            ):
                moved[position] = tf.reshape(piece, member.shape)
    return moved
