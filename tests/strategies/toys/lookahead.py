"""Slow weights that follow the workers' mean a part of the way."""

import keras
import tensorflow as tf

import tfdist
from tfdist.averaging import LocalSteps


class Lookahead(LocalSteps):
    """Takes `period` fast steps, then `alpha` of the way to their mean.

    Args:
      period: Local steps between two exchanges.
      alpha: The part of the way, more than 0 and at most 1.

    References:
      Zhang, Lucas, Hinton and Ba, "Lookahead optimizer: k steps forward, 1
      step back", NeurIPS 2019.
    """

    def __init__(self, period: int = 5, alpha: float = 0.5):
        self.period = period
        self.alpha = alpha

    def steps(self, step):
        return tf.constant(self.period, tf.int64)

    def outer_optimizer(self):
        # What is pushed is where the worker began minus where it has come to.
        return keras.optimizers.SGD(self.alpha)


tfdist.register(
    "lookahead",
    Lookahead,
    defaults={"synchronization": "sync"},
    paper="Zhang et al. 2019",
    help="the workers' mean after K steps, a part of the way to it",
)
