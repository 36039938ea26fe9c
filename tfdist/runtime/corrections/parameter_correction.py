"""One correction of one parameter: what it is asked, and in which order.

The same on servers, on workers and in the simulator, which differ in where
slots are kept and how a parameter is read.
"""

import contextlib

import tensorflow as tf

from tfdist.correction import LateGradient
from tfdist.runtime.corrections.slots import widened


class ParameterCorrection:
    """A `Correction` with its slots of one parameter, or of a piece of it.

    The correction sees half precision as float32.

    Args:
      correction: The `Correction`, resolved.
      slots: Its `Slots`.
      read: Callable of row numbers, None for all, that reads the parameter;
        None on workers, where gradients are not late yet.
    """

    def __init__(self, correction, slots, read=None):
        self._correction = correction
        self._slots = slots
        self._read = read

    def correct(
        self,
        gradient,
        *,
        staleness=None,
        worker=None,
        pulled=None,
        shape=None,
    ):
        """Corrects a gradient.

        Args:
          gradient: A tensor or `tf.IndexedSlices`.
          staleness: See `LateGradient`; default: 0.
          worker: See `LateGradient`; default: 0.
          pulled: See `LateGradient`; None unless the correction needs it.
          shape: Of the parameter, to get all its rows as `tf.IndexedSlices` of
            a sparse gradient that the correction makes dense.

        Returns:
          A tensor or `tf.IndexedSlices`.
        """
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        values = gradient.values if is_sparse else gradient
        indices = gradient.indices if is_sparse else None
        if staleness is None:
            staleness = worker = tf.zeros([], tf.int64)
        now = None
        if pulled is not None:
            now, pulled = widened(self._read(indices)), widened(pulled)
        late = LateGradient(
            widened(values), indices, staleness, worker, now, pulled
        )
        corrected = self._correction.correct(late, self._slots)
        corrected = tf.cast(corrected, values.dtype)
        if is_sparse and self._correction.densifies and shape is not None:
            indices = tf.range(shape[0], dtype=indices.dtype)
        elif not is_sparse or self._correction.densifies:
            return corrected
        return tf.IndexedSlices(corrected, indices, gradient.dense_shape)

    @contextlib.contextmanager
    def observed(self, rate):
        """Scope of an update of the parameter, which the correction observes.

        Args:
          rate: Callable that returns the learning rate, a tensor.
        """
        if not self._correction.observes:
            yield
            return
        before = widened(self._read(None))
        yield
        after = widened(self._read(None))
        rate = tf.cast(rate(), before.dtype)
        self._correction.observe(before, after, rate, self._slots)

    def look_ahead(self, value):
        """Returns the value that a worker pulls for the server's `value`."""
        if not self._correction.uses_lookahead:
            return value
        ahead = self._correction.look_ahead(widened(value), self._slots)
        return tf.cast(ahead, value.dtype)

    def forget(self, worker):
        """Removes what is kept of a worker, a scalar int64 tensor."""
        self._correction.forget(worker, self._slots)
