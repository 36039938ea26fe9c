"""Gradients that halve with their age."""

import tensorflow as tf

import tfdist
from tfdist.correction import Correction


class Decayed(Correction):
    """Scales a gradient by `scale * 0.5 ** (staleness / half_life)`.

    Args:
      half_life: Updates after which a gradient counts half.
      scale: Of a gradient that is not late.
    """

    def __init__(self, half_life: float = 4.0, scale: float = 1.0):
        self.half_life = half_life
        self.scale = scale

    def correct(self, late, slots):
        del slots
        age = tf.cast(late.staleness, tf.float32) / self.half_life
        return late.values * tf.cast(self.scale * 0.5**age, late.values.dtype)


tfdist.register("decayed", Decayed, help="a gradient halves with its age")
