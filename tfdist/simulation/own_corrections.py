"""Corrections that virtual workers make before they push."""

import tensorflow as tf

from tfdist.correction import Slots
from tfdist.runtime.corrections.parameter_correction import ParameterCorrection
from tfdist.runtime.corrections.slots import zeros
from tfdist.simulation.compiled import Compiled


class OwnCorrections:
    """A correction's state on each worker; none if servers correct.

    Args:
      correction: A `Correction`, or None.
      parameters: List of trainable `keras.Variable`.
      num_workers: Number of workers.
    """

    def __init__(self, correction, parameters, num_workers):
        self._correction = correction
        self._correct = Compiled(self._build)
        # Of each worker that has pushed: of each parameter, tensors by name.
        self._kept = {}
        self._fresh = None
        if correction is not None and correction.on_worker:
            self._fresh = [
                zeros(correction, p, num_workers) for p in parameters
            ]

    def before_push(self, gradients, worker):
        """Corrects a worker's gradients before they are pushed.

        Args:
          gradients: List of tensors, `tf.IndexedSlices` or None.
          worker: Its number.

        Returns:
          The same.
        """
        if self._fresh is None:
            return gradients
        kept = self._kept.get(worker, self._fresh)
        gradients, self._kept[worker] = self._correct(gradients, kept)
        return gradients

    def _build(self, gradients, kept):
        slots = [_TensorSlots(values) for values in kept]
        gradients = [
            gradient
            if gradient is None
            else ParameterCorrection(self._correction, one).correct(gradient)
            for gradient, one in zip(gradients, slots, strict=True)
        ]
        return gradients, [one.values for one in slots]

    def restart(self, worker):
        """Another process has come in a worker's place: it knows nothing."""
        self._kept.pop(worker, None)


class _TensorSlots(Slots):
    """Slots in tensors, for functions that are given them and return them."""

    def __init__(self, values):
        self.values = dict(values)

    def read(self, name, rows=None):
        value = self.values[name]
        return value if rows is None else tf.gather(value, rows)

    def assign(self, name, value, rows=None):
        if rows is not None:
            value = tf.tensor_scatter_nd_update(
                self.values[name], rows[..., None], value
            )
        self.values[name] = value
