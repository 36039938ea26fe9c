"""Small models that train under a ClusterMonitor, and what it writes."""

import json
import pathlib

import keras
import numpy as np


def compiled_model(strategy):
    """A model of one layer, made in the strategy's scope."""
    with strategy.scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    return model


def updates_of(model):
    """Updates that all servers have applied."""
    return sum(model.distribute_strategy.updates_applied())


def fit(model, *callbacks, batches, epochs=1, batch_size=2):
    """Trains in one process; returns Keras's history."""
    x = np.ones([batches * batch_size, 2], np.float32)
    return model.fit(
        x,
        x[:, :1],
        batch_size=batch_size,
        epochs=epochs,
        callbacks=list(callbacks),
        verbose=0,
    ).history


def rows_of(path):
    """What the monitor has written of each exchange, a list of dicts."""
    return [json.loads(line) for line in pathlib.Path(path).open()]
