"""Short runs with the callback, and what was added to their loss."""

import keras
import numpy as np

from tfdist.codistillation import Codistillation
from tfdist.codistillation import CodistillationLoss
from tfdist.codistillation import Codistilled
from tfdist.codistillation.weights import snapshot

layers = keras.layers
STEPS = 12


def build(seed=1, units=3):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((2,)), layers.Dense(units)])


def codistilled(student, burn_in_steps=0):
    model = Codistilled(
        student,
        burn_in_steps=burn_in_steps,
        loss=CodistillationLoss("mean_squared_logits", from_logits=True),
    )
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def train(exchange, *, model=None, callbacks=(), group=0, **kwargs):
    """Trains for `STEPS` steps; returns the callback and the logs."""
    arguments = {"exchange_every": 5, "background": False, "verbose": 0}
    arguments.update(kwargs)
    callback = Codistillation(exchange, group=group, num_groups=2, **arguments)
    logs = fit(model or codistilled(build()), [*callbacks, callback])
    return callback, logs


def fit(model, callbacks):
    """Trains for `STEPS` steps; returns the history."""
    stream = np.random.default_rng(0)
    x = stream.standard_normal((STEPS * 2, 2)).astype("float32")
    y = stream.integers(0, 3, len(x))
    return model.fit(
        x, y, batch_size=2, shuffle=False, verbose=0, callbacks=callbacks
    ).history


def weights(seed=2):
    return snapshot(build(seed))


class Watch(keras.callbacks.Callback):
    """Notes after each step what has been added to the loss.

    Attributes:
      totals: After each step, the sum of psi over the examples so far.
    """

    def __init__(self):
        super().__init__()
        self.totals = []

    def on_train_batch_end(self, batch, logs=None):
        del logs
        tracker = self.model._codistillation_tracker
        self.totals.append(float(tracker.total))

    @property
    def steps(self):
        """Steps, from 1, to whose loss something was added."""
        return [
            step
            for step, moved in enumerate(np.diff([0.0, *self.totals]), 1)
            if moved > 0
        ]
