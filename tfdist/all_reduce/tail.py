"""The tail of a reduced vector: each worker's own numbers, summed up."""

from typing import NamedTuple

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.all_reduce import pieces

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


def rate_length(rates):
    """The number of `rate_numbers` of a list of rates, an int."""
    return sum(
        pieces.wire_dtype(rate.dtype, "learning_rate").size // 2
        for rate in rates
    )


def rate_numbers(rates, is_chief):
    """Returns learning rates as numbers whose sums are exact.

    Halves of 16 bits, which float32 holds; zeros from all but the chief.

    Args:
      rates: List of scalar tensors.
      is_chief: Whether this worker is.

    Returns:
      A list of float32 vectors, one for each rate.
    """
    found = []
    for rate in rates:
        rate = tf.cast(rate, pieces.wire_dtype(rate.dtype, "learning_rate"))
        words = tf.reshape(tf.bitcast(rate, tf.int32), [-1])
        halves = [tf.bitwise.right_shift(words, 16), words]
        halves = tf.bitwise.bitwise_and(tf.stack(halves), 0xFFFF)
        numbers = tf.cast(halves, tf.float32) * float(is_chief)
        found.append(tf.reshape(numbers, [-1]))
    return found


def rates_of(numbers, rates):
    """Returns the rates that `rate_numbers` of all workers add up to.

    Args:
      numbers: The vector of the sums, of length `rate_length`.
      rates: List of what has the rates' dtypes.

    Returns:
      A list of scalar tensors.
    """
    numbers = tf.cast(numbers, tf.int32)
    found = []
    for rate in rates:
        length = rate_length([rate])
        high, low = tf.unstack(tf.reshape(numbers[:length], [2, -1]))
        words = tf.bitwise.bitwise_or(tf.bitwise.left_shift(high, 16), low)
        is_one_word = words.shape[0] == 1
        words = words[0] if is_one_word else words
        wide = tf.bitcast(words, pieces.wire_dtype(rate.dtype, "learning_rate"))
        found.append(tf.cast(wide, rate.dtype))
        numbers = numbers[length:]
    return found
