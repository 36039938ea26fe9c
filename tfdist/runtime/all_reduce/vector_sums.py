"""Sums of tensors over workers, in one vector for each type of numbers."""

import zlib

import tensorflow as tf


class VectorSums:
    """Builds sums over the workers of a ring.

    Args:
      peers: The `Peers`.
      store: The `ParameterStore`, whose names are alike on all workers.
    """

    def __init__(self, peers, store):
        self._peers = peers
        self._store = store

    def all_reduce(self, vector, name, **kwargs):
        """Builds what all workers' vectors of a name come to.

        Args:
          vector: See `Peers.all_reduce`.
          name: str.
          **kwargs: The same.
        """
        # The store's names begin with the strategy's.
        key = checksum(self._store.name_of(f"ring/{name}")) & 0x7FFFFFFF
        return self._peers.all_reduce(vector, key, **kwargs)

    def of(self, values, name):
        """Builds the sums of tensors.

        Returns:
          A list of tensors, and the bytes that this worker sends, an int.
        """
        vectors = vectors_of(values)
        sums = self.of_vectors(vectors, name)
        return parts_of(sums, values), self.num_bytes(vectors.values())

    def of_vectors(self, vectors, name):
        """Builds the sums of vectors: dtype -> tensor, both."""
        return {
            dtype: self.all_reduce(vector, f"{name}/{dtype.name}")
            for dtype, vector in vectors.items()
        }

    def num_bytes(self, vectors):
        """Bytes that a worker sends, and receives, in a ring."""
        workers = self._peers.num_workers
        total = sum(v.shape.num_elements() * v.dtype.size for v in vectors)
        return round(2 * (workers - 1) / workers * total)


def vectors_of(values):
    """All values of each type of numbers, end to end: dtype -> tensor."""
    dtypes = sorted({v.dtype for v in values}, key=lambda d: d.name)
    return {
        dtype: tf.concat(
            [tf.reshape(v, [-1]) for v in values if v.dtype == dtype], 0
        )
        for dtype in dtypes
    }


def parts_of(vectors, values):
    """The places of `values` in vectors like theirs, a list of tensors."""
    parts = [None] * len(values)
    for dtype, vector in vectors.items():
        here = [k for k, v in enumerate(values) if v.dtype == dtype]
        sizes = [values[k].shape.num_elements() for k in here]
        for k, part in zip(here, tf.split(vector, sizes), strict=True):
            parts[k] = tf.reshape(part, values[k].shape)
    return parts


def checksum(text):
    """A number of 32 bits for a text, the same in all processes."""
    return zlib.crc32(text.encode())
