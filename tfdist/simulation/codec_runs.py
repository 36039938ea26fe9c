"""Codecs of virtual workers: compiled once, with the state of each worker."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.compression.base import Codec
from tfdist.simulation.compiled import Compiled

# Below this share of elements, those that are not zero are added alone.
_SPARSE = 1 / 16


class DecodedUpdate(NamedTuple):
    """A decoded message.

    Attributes:
      indices: Ascending, or None for all.
      values: Of these elements.
      num_bytes: Of the message, an int.
      elements: How many are not zero, an int.
    """

    indices: np.ndarray | None
    values: np.ndarray
    num_bytes: int
    elements: int

    def add_to(self, weights: np.ndarray, scale: float) -> None:
        """Adds `scale` times the update to a vector, in place."""
        scale = weights.dtype.type(scale)
        if self.indices is None:
            weights += scale * self.values
        else:
            weights[self.indices] += scale * self.values


class CodecRuns:
    """Encodes and decodes for every worker of a run, and others after it.

    Args:
      codec: A `Codec`, or None: updates are sent as they are.
      size: Elements of the vector.
      dtype: NumPy's.
    """

    def __init__(self, codec: Codec | None, size: int, dtype: np.dtype):
        self._codec = codec
        self._size = size
        self._dtype = np.dtype(dtype)
        self._encode = Compiled(self._build)

    def first(self, worker: int) -> dict:
        """Returns the state of a worker that has sent nothing.

        Args:
          worker: Its number.
        """
        if self._codec is None:
            return {}
        return self._codec.state(self._size, tf.as_dtype(self._dtype), worker)

    def encode(
        self, vector: np.ndarray, state: dict
    ) -> tuple[DecodedUpdate, dict]:
        """Encodes a vector, and decodes the message.

        Args:
          vector: `[size]`.
          state: The worker's.

        Returns:
          The `DecodedUpdate`, and the worker's new state.
        """
        if self._codec is None:
            return DecodedUpdate(
                None, vector, vector.nbytes, vector.size
            ), state
        decoded, state, *message = self._encode(tf.constant(vector), state)
        num_bytes = sum(tensor.numpy().nbytes for tensor in message)
        decoded = decoded.numpy()
        indices = np.flatnonzero(decoded)
        count = len(indices)
        if count < _SPARSE * self._size:
            update = DecodedUpdate(indices, decoded[indices], num_bytes, count)
        else:
            update = DecodedUpdate(None, decoded, num_bytes, count)
        return update, state

    def _build(self, vector, state):
        message, state = self._codec.encode(vector, state)
        return self._codec.decode(message, self._size), state, *message
