"""Tensors from one device to another, small ones packed together."""

import tensorflow as tf

# Below this many bytes a tensor costs more as a message of its own than as a
# piece of a packed one; above it, the copies of packing cost more (measured
# with benchmarks/exchange.py).
PACK_BELOW_BYTES = 64 * 1024
# From so many gradients of rows on, all make one message: with the 55 tables of
# benchmarks/recommender.py, a step takes 5 % less. Fewer were not measured.
JOIN_FROM_TENSORS = 8
# TensorFlow splits a vector without copying it if all pieces begin and end at
# multiples of this (its `EIGEN_MAX_ALIGN_BYTES`, at most).
ALIGNMENT_BYTES = 64


def num_bytes(tensor):
    """Bytes of `tensor`: an int, or a scalar int64 tensor if unknown."""
    elements = tensor.shape.num_elements()
    if elements is not None:
        return elements * tensor.dtype.size
    return tf.size(tensor, out_type=tf.int64) * tensor.dtype.size


def move(tensors, *, source, target, homes=()):
    """Builds the ops that bring `tensors` to a device.

    Small tensors of one type make one message. Those of other types travel in
    it as bits where they fit: a handful of counters would otherwise cost as
    much as the parameters beside them. The rows of many tables make one
    message, too.

    Args:
      tensors: List of dense tensors on `source`.
      source: Device name.
      target: Device name.
      homes: Devices to which the first tensors go instead, where they are
        large: what is packed arrives as one message. None for `target`.

    Returns:
      A list of tensors on `target`, in the order of `tensors`.
    """
    homes = [*homes, *[None] * (len(tensors) - len(homes))]
    rows = [
        k
        for k, tensor in enumerate(tensors)
        if homes[k] is None and _are_rows(tensor)
    ]
    if len(rows) < JOIN_FROM_TENSORS:
        return _move(tensors, source, target, homes)
    with tf.device(source):
        numbers = tf.stack([tf.size(tensors[k], tf.int64) for k in rows])
        vector = tf.concat([tf.reshape(tensors[k], [-1]) for k in rows], 0)
    others = [k for k in range(len(tensors)) if k not in rows]
    *moved, numbers, vector = _move(
        [*(tensors[k] for k in others), numbers, vector],
        source,
        target,
        [*(homes[k] for k in others), None, None],
    )
    with tf.device(target):
        parts = tf.split(vector, numbers, num=len(rows))
        parts = [
            tf.reshape(part, [-1, *tensors[k].shape[1:]])
            for k, part in zip(rows, parts, strict=True)
        ]
    found = dict(zip([*others, *rows], [*moved, *parts], strict=True))
    return [found[k] for k in range(len(tensors))]


def _are_rows(tensor):
    """Whether it is some rows of a matrix of float32, how many is not known."""
    shape = tensor.shape
    return (
        tensor.dtype == tf.float32
        and shape.rank == 2
        and shape[0] is None
        and shape[1] is not None
    )


def _move(tensors, source, target, homes):
    """Builds the same, without joining rows; `homes` are of all tensors."""
    moved = [None] * len(tensors)
    packs = {}
    for position, tensor in enumerate(tensors):
        if _is_packable(tensor):
            packs.setdefault(tensor.dtype, []).append(position)
        else:
            with tf.device(homes[position] or target):
                moved[position] = tf.identity(tensor)
    if not packs:
        return moved
    sizes = {
        dtype: sum(num_bytes(tensors[p]) for p in positions)
        for dtype, positions in packs.items()
    }
    carrier = max(
        sizes,
        key=lambda carrier: (
            sum(_can_ride(dtype, sizes[dtype], carrier) for dtype in sizes),
            sizes[carrier],
        ),
    )
    members = [tensors[p] for p in packs[carrier]]
    riders = []
    with tf.device(source):
        for dtype, positions in packs.items():
            if dtype == carrier:
                continue
            vector, part = _join([tensors[p] for p in positions])
            if _can_ride(dtype, sizes[dtype], carrier):
                riders.append((dtype, positions, part))
                members.append(_bits(vector, carrier))
                continue
            with tf.device(target):
                pieces = part(tf.identity(vector))
            for position, piece in zip(positions, pieces, strict=True):
                moved[position] = piece
        vector, part = _join(members)
    with tf.device(target):
        pieces = part(tf.identity(vector))
        own = packs[carrier]
        for position, piece in zip(own, pieces, strict=False):
            moved[position] = piece
        for (dtype, positions, part_rider), vector in zip(
            riders, pieces[len(own) :], strict=True
        ):
            for position, piece in zip(
                positions, part_rider(_bits(vector, dtype)), strict=True
            ):
                moved[position] = piece
    return moved


def _is_packable(tensor):
    elements = tensor.shape.num_elements()
    if elements is None or not elements:
        return False
    return elements * tensor.dtype.size < PACK_BELOW_BYTES


def _can_ride(dtype, size, carrier):
    """Whether `size` bytes of a type are whole elements of another one."""
    are_numbers = all(
        d.is_floating or d.is_integer or d.is_complex for d in (dtype, carrier)
    )
    return are_numbers and size % carrier.size == 0


def _bits(vector, dtype):
    """The bits of `vector` as a vector of another type; copies nothing."""
    if vector.dtype.size < dtype.size:
        vector = tf.reshape(vector, [-1, dtype.size // vector.dtype.size])
    return tf.reshape(tf.bitcast(vector, dtype), [-1])


def _join(tensors):
    """Joins tensors of one type.

    Args:
      tensors: List of tensors of fully defined shapes.

    Returns:
      A tuple: a vector, and the function that takes it, or its copy on
      another device, apart again.
    """
    if len(tensors) == 1:
        shape = tensors[0].shape
        vector = tf.reshape(tensors[0], [-1])
        return vector, lambda copy: [tf.reshape(copy, shape)]
    order = sorted(
        range(len(tensors)), key=lambda k: not _is_aligned(tensors[k])
    )
    vector = tf.concat([tf.reshape(tensors[k], [-1]) for k in order], 0)
    sizes = [tensors[k].shape.num_elements() for k in order]
    aligned = sum(_is_aligned(tensor) for tensor in tensors)

    def part(copy):
        pieces = _split(copy, sizes, aligned)
        parted = [None] * len(tensors)
        for k, piece in zip(order, pieces, strict=True):
            parted[k] = tf.reshape(piece, tensors[k].shape)
        return parted

    return vector, part


def _is_aligned(tensor):
    return num_bytes(tensor) % ALIGNMENT_BYTES == 0


def _split(vector, sizes, aligned):
    """Splits `vector`; the first `aligned` pieces stay where they are."""
    end = sum(sizes[:aligned])
    if not 0 < end < sum(sizes):
        return tf.split(vector, sizes)
    return [
        *tf.split(vector[:end], sizes[:aligned]),
        *tf.split(vector[end:], sizes[aligned:]),
    ]
