"""Tensors as few vectors, and large vectors in pieces."""

import tensorflow as tf

# Pieces of a large vector are summed at the same time.
PIECE_BYTES = 8 << 20
# A tail travels with a vector of at most this size, or else by itself.
_TAIL_BYTES = 1 << 20


class Layout:
    """The arrangement of tensors in vectors of one type each.

    Args:
      specs: List of `tf.TensorSpec`.
    """

    def __init__(self, specs):
        self._specs = specs
        self._buckets = []
        open_by_dtype = {}
        # In the order in which backpropagation makes gradients.
        for k in reversed(range(len(specs))):
            dtype = specs[k].dtype
            if self._size([k]) >= PIECE_BYTES:
                # By itself: nothing needs to be copied.
                self._buckets.append([k])
                continue
            bucket = open_by_dtype.get(dtype)
            if bucket is None or self._size(bucket) >= PIECE_BYTES:
                bucket = open_by_dtype[dtype] = []
                self._buckets.append(bucket)
            bucket.append(k)
        small = [b for b in self._buckets if self._size(b) <= _TAIL_BYTES]
        self._carrier = min(small, key=self._size) if small else None

    def _size(self, bucket):
        return sum(_elements(self._specs[k]) for k in bucket) * (
            self._specs[bucket[0]].dtype.size
        )

    def piece_bytes(self, tail=0):
        """Returns the bytes of each piece, a list of ints.

        Args:
          tail: Numbers in the tail.
        """
        sizes = []
        for bucket in self._buckets:
            dtype = self._specs[bucket[0]].dtype
            number = sum(_elements(self._specs[k]) for k in bucket)
            if bucket is self._carrier:
                number += tail
            sizes += [cut * dtype.size for cut in _cuts(number, dtype)]
        if tail and self._carrier is None:
            sizes.append(tail * tf.float32.size)
        return sizes

    def vectors(self, values):
        """Returns the vectors of tensors that are like the specs."""
        return [
            _joined([tf.reshape(values[k], [-1]) for k in bucket])
            for bucket in self._buckets
        ]

    def tensors(self, vectors):
        """Returns the tensors that `vectors` are of."""
        found = [None] * len(self._specs)
        for bucket, vector in zip(self._buckets, vectors, strict=True):
            sizes = [_elements(self._specs[k]) for k in bucket]
            parts = tf.split(vector, sizes) if sizes[1:] else [vector]
            for k, part in zip(bucket, parts, strict=True):
                found[k] = tf.reshape(part, self._specs[k].shape)
        return found

    def reduce(self, vectors, tail, reduce):
        """Builds the sums of vectors and of a tail.

        Args:
          vectors: From `vectors`.
          tail: A float32 vector; None for none.
          reduce: Callable of a vector, and of a number that tells pieces
            apart, that sums it over workers.

        Returns:
          The sums of the vectors, a list, and that of the tail or None.
        """
        carrier = None
        if self._carrier is not None and tail is not None:
            carrier = self._buckets.index(self._carrier)
        summed, tail_sum = [], None
        number = 0
        for k, vector in enumerate(vectors):
            if k == carrier:
                vector = tf.concat([vector, tf.cast(tail, vector.dtype)], 0)
            size = vector.shape.num_elements()
            cuts = _cuts(size, vector.dtype)
            pieces = tf.split(vector, cuts) if cuts[1:] else [vector]
            sums = []
            for piece in pieces:
                sums.append(reduce(piece, number))
                number += 1
            vector = _joined(sums)
            if k == carrier:
                vector, tail_sum = tf.split(
                    vector, [size - tail.shape[0], tail.shape[0]]
                )
            summed.append(vector)
        if tail is None:
            return summed, None
        if carrier is None:
            tail_sum = reduce(tail, number)
        return summed, tf.cast(tail_sum, tf.float32)


def wire_dtype(dtype, name):
    """The type in which values of a variable are summed up.

    Args:
      dtype: Of the values.
      name: Of the variable.
    """
    if dtype.is_complex or dtype == tf.string:
        raise NotImplementedError(
            f"Variable {name!r} must be of floats, integers or bools to be "
            "trained, or assigned, in a step of workers without servers. "
            f"Received: dtype={dtype.name}"
        )
    if not dtype.is_floating:
        return tf.float64
    return tf.float32 if dtype.size < 4 else dtype


def of_dtype(mean, dtype):
    """Builds a mean as a value of a type."""
    if dtype.is_floating:
        return tf.cast(mean, dtype)
    return tf.cast(tf.round(mean), dtype)


def _cuts(size, dtype):
    """The elements of each piece of a vector of `size`, a list of ints."""
    most = PIECE_BYTES // dtype.size
    return [min(most, size - at) for at in range(0, size, most)]


def _joined(vectors):
    return tf.concat(vectors, 0) if vectors[1:] else vectors[0]


def _elements(spec):
    return spec.shape.num_elements()
