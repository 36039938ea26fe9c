"""Softsync whose updates are made of more and more gradients."""

import tensorflow as tf

import tfdist
from tfdist.synchronization import Synchronization


class GrowingSoftSync(Synchronization):
    """Each update averages one gradient more after every `every` updates.

    Args:
      every: Updates of the same size.
      most: Gradients that an update is made of at last.
    """

    averages = True

    def __init__(self, every: int = 100, most: int = 8):
        self.every = every
        self.most = most

    def decide(self, state):
        state = state.drop(state.unusable)
        arrived = state.arrived
        number = state.in_round + tf.cast(tf.reduce_any(arrived), tf.int64)
        size = tf.minimum(1 + state.version // self.every, self.most)
        state = state.append(
            arrived,
            first=tf.cast(tf.equal(number, 1), tf.int64),
            count=tf.where(number >= size, number, 0),
        )
        return state.grant(arrived)


tfdist.register(
    "growing_softsync",
    GrowingSoftSync,
    help="softsync whose updates average more and more gradients",
)
