"""Workers whose models lie on helpers, in part."""

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import handshake
import tfdist
from tfdist import placement

WHERE = {"middle": "helper:0/CPU:0", "norm": "helper:1/CPU:0"}


def build(optimizer, policy):
    """Compiles a model, the same each time."""
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.Input([6]),
            keras.layers.Dense(8, "gelu", name="first", dtype=policy),
            keras.layers.Dense(8, "gelu", name="middle", dtype=policy),
            keras.layers.BatchNormalization(name="norm", dtype=policy),
            keras.layers.Dense(3, name="last"),
        ]
    )
    compile_as(model, optimizer)
    return model


def compile_as(model, optimizer):
    """Compiles a model with a new optimizer."""
    model.compile(
        keras.optimizers.deserialize(optimizer), "mse", metrics=["mae"]
    )


class Losses(keras.callbacks.Callback):
    """Keeps the loss of each batch."""

    def __init__(self):
        """Starts before the first batch."""
        super().__init__()
        self.found = []

    def on_train_batch_end(self, batch, logs=None):
        """Keeps it."""
        self.found.append(logs["loss"])


def fit_twice(strategy, model, optimizer):
    """Two fits on uneven batches, the second with a frozen layer."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=[44, 6]).astype("float32")
    y = rng.normal(size=[44, 3]).astype("float32")
    losses = Losses()
    arguments = {"batch_size": 8, "shuffle": False, "verbose": 0}
    arguments["callbacks"] = [losses]
    model.fit(x, y, epochs=2, validation_data=(x, y), **arguments)
    model.get_layer("middle").trainable = False
    with strategy.scope():
        compile_as(model, optimizer)
    model.fit(x, y, epochs=2, **arguments)
    return [
        *losses.found,
        *model.evaluate(x, y, verbose=0),
        *model.predict(x, verbose=0).ravel().tolist(),
    ]


def train(optimizers):
    """Compares with plain Keras in one process.

    Args:
        optimizers: dict of a name to the configuration of an optimizer, and
            the policy of the layers.
    """
    strategy = tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0)
    )
    found = {}
    for name, (optimizer, policy) in optimizers.items():
        with strategy.scope():
            model = build(optimizer, policy)
            placement.place(model, WHERE)
        numbers = fit_twice(strategy, model, optimizer)
        alone = tf.distribute.OneDeviceStrategy("/cpu:0")
        with alone.scope():
            plain = build(optimizer, policy)
        found[name] = {
            "numbers": [numbers, fit_twice(alone, plain, optimizer)],
            "weights": [
                np.concatenate([w.ravel() for w in one.get_weights()]).tolist()
                for one in (model, plain)
            ],
            "iterations": [
                int(one.optimizer.iterations.numpy()) for one in (model, plain)
            ],
            "devices": {v.path: v.value.device for v in model.variables},
        }
    handshake.report(**found)


def wait_for_helpers(seconds):
    """Is a worker whose helpers never come."""
    try:
        tfdist.AsyncStrategy(
            fault_tolerance=tfdist.FaultTolerance(start_timeout=seconds)
        )
    except TimeoutError as error:
        handshake.report(error=str(error))
