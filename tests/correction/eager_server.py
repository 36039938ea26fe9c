"""A server and its workers in eager tensors, to try corrections on alone."""

import tensorflow as tf

from tfdist.correction import LateGradient
from tfdist.runtime.corrections.parameter_correction import ParameterCorrection
from tfdist.runtime.corrections.slots import WorkerSlots


def make_slots(correction, shape, num_workers=1):
    """Slots of zeros, in variables."""
    return WorkerSlots(
        {
            name: tf.Variable(tf.zeros(size))
            for name, size in correction.slots(list(shape), num_workers).items()
        }
    )


def late(values, *, staleness=0, worker=0, now=None, then=None, rows=None):
    """A `LateGradient` of numbers."""

    def tensor(value):
        return None if value is None else tf.constant(value, tf.float32)

    return LateGradient(
        tensor(values),
        None if rows is None else tf.constant(rows, tf.int64),
        tf.constant(staleness, tf.int64),
        tf.constant(worker, tf.int64),
        tensor(now),
        tensor(then),
    )


class EagerServer:
    """Plain SGD; the counterpart of `oracles.Server`.

    Args:
      start: The initial parameters, a vector.
      workers: Number of workers.
      correction: A `Correction`.
      rate: Learning rate.
    """

    def __init__(self, start, workers, correction, rate):
        self.theta = tf.constant(start, tf.float32)
        self.copies = [self.theta] * workers
        self._pulled = [0] * workers
        self._correction, self._rate = correction, tf.constant(rate)
        self._version = 0
        number = workers if correction.on_worker else 1
        self._at_work = [
            ParameterCorrection(
                correction,
                make_slots(correction, self.theta.shape, workers),
                lambda rows: self.theta,
            )
            for _ in range(number)
        ]

    def arrive(self, worker, gradient):
        """A worker's gradient of its copy arrives."""
        correction = self._correction
        one = self._at_work[worker if correction.on_worker else 0]
        corrected = one.correct(
            tf.cast(gradient, tf.float32),
            staleness=tf.constant(
                self._version - self._pulled[worker], tf.int64
            ),
            worker=tf.constant(worker, tf.int64),
            pulled=self.copies[worker] if correction.copies else None,
        )
        with one.observed(lambda: self._rate):
            self.theta = self.theta - self._rate * corrected
        self._version += 1
        self.copies[worker] = one.look_ahead(self.theta)
        self._pulled[worker] = self._version

    def forget(self, worker):
        """A worker is gone."""
        self._at_work[0].forget(tf.constant(worker, tf.int64))
