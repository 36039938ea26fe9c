"""The tail of a reduced vector: each worker's own numbers, summed up."""

from typing import NamedTuple

import tensorflow as tf

from tfdist import private_tensorflow

# The chief's `Tail.chief`.
TRAINS, STOPS, IS_OVER = 0.0, 1.0, 2.0


class Tail(NamedTuple):
    """Numbers of one worker, or their sums over all, float32 scalars.

    Attributes:
      present: 1 from a worker that has a batch.
      gradients: 1 from one whose gradients count; 0 if they are not finite.
      states: 1 from one whose assigned state counts.
      over: 1 from one whose call of `fit` has ended.
      wrote: 1 from one whose code has assigned shared variables eagerly.
      chief: From the chief alone: whether it trains, stops or is over.
    """

    present: object = 0.0
    gradients: object = 0.0
    states: object = 0.0
    over: object = 0.0
    wrote: object = 0.0
    chief: object = 0.0


LENGTH = len(Tail._fields)


class Told:
    """The most of `Tail.wrote` and `Tail.chief` of the steps since a look."""

    def __init__(self):
        self._most = private_tensorflow.hidden_variable([0.0, 0.0])

    def note(self, tail):
        """Builds the note of the `Tail` of a step, of all workers."""
        told = tf.cast(tf.stack([tail.wrote, tail.chief]), tf.float32)
        told = tf.maximum(self._most.read_value(), told)
        self._most.assign(told, read_value=False)

    def read(self):
        """Returns and forgets what was noted: `wrote` and `chief`, floats."""
        wrote, chief = self._most.numpy().tolist()
        if wrote or chief:
            self._most.assign([0.0, 0.0])
        return wrote, chief


def without_share(vector):
    """Returns a worker's numbers if nothing that it has counts."""
    kept = Tail(*[1.0] * LENGTH)._replace(gradients=0.0, states=0.0)
    others = [1.0] * (vector.shape[0] - LENGTH)
    return vector * tf.constant([*kept, *others])


def split(vector):
    """Returns the `Tail` of summed numbers, and what follows it."""
    return Tail(*tf.unstack(vector[:LENGTH])), vector[LENGTH:]
