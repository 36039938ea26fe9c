"""Models that L-BFGS trains in one process, and their `fit`."""

import contextlib

import keras
import tensorflow as tf

from tests.sandblaster import tasks
import tfdist


def fit(model, epochs, batch_size=20, **arguments):
    """Trains on the data of `tasks`, of which the last batch is smaller."""
    x, targets = tasks.data()
    y = arguments.pop("y", targets)
    arguments.setdefault("shuffle", False)
    return model.fit(
        x, y, batch_size=batch_size, epochs=epochs, verbose=0, **arguments
    )


@contextlib.contextmanager
def later_call_under_way(strategy):
    """Scope in which the chief's process before has begun a later call."""
    board = strategy._training.board
    before = board.read()
    board.change(lambda record, now: record.update(fit=99, done=1))
    try:
        yield
    finally:
        board.change(
            lambda record, now: (record.clear(), record.update(before))
        )


def small_model(strategy, *layers, optimizer=None, **arguments):
    """A compiled model of some layers."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((tasks.FEATURES,)), *layers])
        model.compile(
            optimizer or tfdist.sandblaster.LBFGS(), loss="mse", **arguments
        )
    return model


class OwnStep(keras.Model):
    """A `train_step` without metrics."""

    more = ()

    def train_step(self, data):
        """Returns the loss of the batch as it is."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x)[:, 0] - tf.cast(y, x.dtype)) ** 2)
            loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, **dict.fromkeys(self.more, loss)}


def own_step(strategy, metrics=("mae",)):
    with strategy.scope():
        inputs = keras.Input((tasks.FEATURES,))
        model = OwnStep(inputs, keras.layers.Dense(1)(inputs))
        model.compile(
            tfdist.sandblaster.LBFGS(), loss="mse", metrics=list(metrics)
        )
    return model
