"""Tensors as few vectors, and large vectors in pieces."""

import tensorflow as tf

# Pieces of a large vector are summed at the same time.
PIECE_BYTES = 8 << 20
# A tail travels with a vector of at most this size, or else by itself.
_TAIL_BYTES = 1 << 20
# Tensors begin at multiples of so many bytes: where they do, TensorFlow cuts
# a vector into them without a copy.
_ROW_BYTES = 64
# The lower half of an integer of 8 bytes counts from 0 to this number.
_LOWER = 1 << 32


class Layout:
    """The arrangement of tensors, and of a tail, in vectors of one type each.

    Args:
      specs: List of `tf.TensorSpec`.
      tail: Numbers in the tail.
    """

    def __init__(self, specs, tail=0):
        self._specs = specs
        self._length = tail
        self._buckets = []
        open_by_dtype = {}
        # In the order in which backpropagation makes gradients.
        for k in reversed(range(len(specs))):
            dtype = specs[k].dtype
            if self._bytes([k]) >= PIECE_BYTES:
                # By itself: nothing needs to be copied.
                self._buckets.append([k])
                continue
            bucket = open_by_dtype.get(dtype)
            if bucket is None or self._bytes(bucket) >= PIECE_BYTES:
                bucket = open_by_dtype[dtype] = []
                self._buckets.append(bucket)
            bucket.append(k)
        small = [b for b in self._buckets if self._bytes(b) <= _TAIL_BYTES]
        # Number of the vector that the tail is at the end of; one of its own,
        # after all others, if none is small.
        self._carrier = len(self._buckets)
        if small:
            self._carrier = self._buckets.index(min(small, key=self._bytes))

    def _bytes(self, bucket):
        size = self._specs[bucket[0]].dtype.size
        return sum(_elements(self._specs[k]) for k in bucket) * size

    def _sizes(self, bucket):
        """Elements that each tensor takes in its vector, a list of ints."""
        row = _row(self._specs[bucket[0]].dtype)
        if self._bytes(bucket) >= PIECE_BYTES and not bucket[1:]:
            row = 1
        return [-(-_elements(self._specs[k]) // row) * row for k in bucket]

    def piece_bytes(self):
        """Returns the bytes of each piece, a list of ints."""
        sizes = []
        for k, bucket in enumerate(self._buckets):
            dtype = self._specs[bucket[0]].dtype
            number = sum(self._sizes(bucket))
            if k == self._carrier:
                number += self._length
            sizes += [cut * dtype.size for cut in _cuts(number, dtype)]
        if self._length and self._carrier == len(self._buckets):
            sizes.append(self._length * tf.float32.size)
        return sizes

    def vectors(self, values, tail=None):
        """Returns the vectors of tensors that are like the specs.

        Args:
          values: The tensors.
          tail: Float32 vector; None if there is none.
        """
        vectors = []
        for bucket in self._buckets:
            parts = []
            for k, size in zip(bucket, self._sizes(bucket), strict=True):
                # A gradient may not know its shape.
                part = tf.reshape(values[k], [_elements(self._specs[k])])
                if more := size - _elements(self._specs[k]):
                    part = tf.pad(part, [[0, more]])
                parts.append(part)
            if self._length and len(vectors) == self._carrier:
                parts.append(tf.cast(tail, parts[0].dtype))
            vectors.append(_joined(parts))
        if self._length and len(vectors) == self._carrier:
            vectors.append(tail)
        return vectors

    def tail(self, vectors):
        """Returns the tail of `vectors`, float32."""
        vector = vectors[self._carrier]
        size = vector.shape.num_elements()
        return tf.cast(vector[size - self._length :], tf.float32)

    def tensors(self, vectors):
        """Returns the tensors that `vectors` are of."""
        found = [None] * len(self._specs)
        for bucket, vector in zip(
            self._buckets, vectors[: len(self._buckets)], strict=True
        ):
            sizes = self._sizes(bucket)
            vector = vector[: sum(sizes)]
            parts = [vector]
            if sizes[1:]:
                row = _row(vector.dtype)
                rows = tf.reshape(vector, [-1, row])
                parts = tf.split(rows, [size // row for size in sizes])
            for k, part in zip(bucket, parts, strict=True):
                spec = self._specs[k]
                part = tf.reshape(part, [-1])[: _elements(spec)]
                found[k] = tf.reshape(part, spec.shape)
        return found

    def sums(self, vectors, reduce):
        """Builds the sums of vectors.

        Args:
          vectors: From `vectors`.
          reduce: Callable of a vector, and of a number that tells pieces
            apart, that sums it over workers.
        """
        summed = []
        number = 0
        for vector in vectors:
            cuts = _cuts(vector.shape.num_elements(), vector.dtype)
            pieces = tf.split(vector, cuts) if cuts[1:] else [vector]
            sums = []
            for piece in pieces:
                sums.append(reduce(piece, number))
                number += 1
            summed.append(_joined(sums))
        return summed


def wire_dtype(dtype, name):
    """The type in which values of a variable are summed up.

    Args:
      dtype: Of the values.
      name: Of the variable.
    """
    if dtype.is_complex or dtype == tf.string:
        raise NotImplementedError(
            f"Variable {name!r} must be of floats, integers or bools to be "
            "trained in a step of workers without servers, or assigned in one "
            f"with local steps. Received: dtype={dtype.name}"
        )
    if not dtype.is_floating:
        return tf.float64
    return tf.float32 if dtype.size < 4 else dtype


def of_dtype(mean, dtype):
    """Builds a mean as a value of a type."""
    if dtype.is_floating:
        return tf.cast(mean, dtype)
    return tf.cast(tf.round(mean), dtype)


def state_spec(variable):
    """The shape and type in which values of a state are summed up.

    No float holds an integer of 8 bytes, or a complex number: such a state is
    two floats, along one more axis.
    """
    shape, dtype = variable.shape, variable.dtype
    if dtype.is_complex:
        return tf.TensorSpec([*shape, 2], dtype.real_dtype)
    if _has_halves(dtype):
        return tf.TensorSpec([*shape, 2], tf.float64)
    return tf.TensorSpec(shape, wire_dtype(dtype, variable.name))


def of_state(value, spec):
    """Builds what is summed up of a value of a state.

    Args:
      value: A tensor.
      spec: From `state_spec`.
    """
    if value.dtype.is_complex:
        return tf.stack([tf.math.real(value), tf.math.imag(value)], -1)
    if _has_halves(value.dtype):
        lower = tf.math.floormod(value, tf.constant(_LOWER, value.dtype))
        upper = tf.bitwise.right_shift(value, tf.constant(32, value.dtype))
        value = tf.stack([upper, lower], -1)
    return tf.cast(value, spec.dtype)


def as_state(mean, dtype):
    """Builds a mean, or a sum, as a value of a state.

    Args:
      mean: A tensor like those of `of_state`.
      dtype: The type of the state.
    """
    if dtype.is_complex:
        return tf.complex(*tf.unstack(mean, axis=-1))
    if _has_halves(dtype):
        upper, lower = tf.unstack(mean, axis=-1)
        whole = tf.floor(upper)
        lower = tf.round(lower + (upper - whole) * _LOWER)
        # Sums wrap around, as those of integers do.
        whole = tf.cast(whole, dtype) * tf.constant(_LOWER, dtype)
        return whole + tf.cast(lower, dtype)
    return of_dtype(mean, dtype)


def _has_halves(dtype):
    return dtype.is_integer and dtype.size == 8


def _cuts(size, dtype):
    """The elements of each piece of a vector of `size`, a list of ints."""
    most = PIECE_BYTES // dtype.size
    return [min(most, size - at) for at in range(0, size, most)]


def _row(dtype):
    return _ROW_BYTES // dtype.size


def _joined(vectors):
    return tf.concat(vectors, 0) if vectors[1:] else vectors[0]


def _elements(spec):
    return spec.shape.num_elements()
