"""Steps that assign trained weights themselves, beside optimizers."""

import keras
import numpy as np
import tensorflow as tf

from tests.runtime.keras_hooks import evaluations_test
import tfdist

X = np.ones([1, 1], "float32")


class Critic(keras.Model):
    """Three steps of one weight, which it sets before each of them.

    Args:
        between: called between the first two steps.
    """

    def __init__(self, between=lambda model: None):
        super().__init__()
        self.w = self.add_weight(shape=(), initializer="zeros")
        self._between = between

    def call(self, x):
        return x * self.w

    def train_step(self, data):
        del data
        self.w.assign(5.0)
        for number in range(3):
            if number == 1:
                others = tf.py_function(lambda: self._between(self), [], [])
                with tf.control_dependencies([others]):
                    old = tf.identity(self.w)
                    self.w.assign(tf.minimum(old, 3.0))
            elif number:
                self.w.assign(tf.minimum(self.w, 3.0))
            with tf.GradientTape() as tape:
                loss = -tf.convert_to_tensor(self.w)
            gradients = tape.gradient(loss, [self.w])
            self.optimizer.apply(gradients, [self.w])
        return {"w": self.w.value}


def trained(strategy, weight_decay=None, **arguments):
    with strategy.scope():
        model = Critic(**arguments)
        model.compile(keras.optimizers.SGD(1.0, weight_decay=weight_decay))
    model.fit(X, verbose=0)
    return float(model.w)


def test_updates_are_of_the_weights_that_a_step_has_set():
    """Where a log says when servers update; and nothing has come late."""
    # 5 becomes 2.5 + 1, which is clipped to 3; then 1.5 + 1 and 1.25 + 1.
    assert trained(tfdist.DCASGDStrategy(), weight_decay=0.5) == 2.25


def test_weights_set_between_two_steps_keep_what_others_did():
    def others(model):
        evaluations_test.Server(model, model.w).push()

    found = trained(tfdist.AsyncStrategy(), between=others)
    assert found == 5 + 3 - evaluations_test.OTHERS
