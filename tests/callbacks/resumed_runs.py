"""Runs that are stopped and resumed: their model, their data, their `fit`."""

import keras

from tests.strategies.twins import classification
from tests.strategies.twins import compiled
import tfdist

BATCH = 6
# Eight steps of an epoch: no period of 5 and no accumulation of 3 ends with
# an epoch, so that a save comes in the middle of each.
X, Y = classification(8 * BATCH)
SGD = keras.optimizers.SGD
ADAM = keras.optimizers.Adam


def net():
    """A model with statistics, and with a seed of its own."""
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(4, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3),
        ]
    )


def start(make_strategy, make_optimizer, net):
    """Begins a run: its strategy, and a model that is compiled."""
    keras.utils.set_random_seed(5)
    strategy = make_strategy()
    with strategy.scope():
        model = compiled(net(), make_optimizer())
    return strategy, model


def averages():
    """A strategy whose workers average after each four local steps."""
    return tfdist.ParameterServerStrategy(
        synchronization=tfdist.synchronization.Sync(), local_steps=4
    )


def fit(model, epochs, **kwargs):
    """Trains up to that epoch."""
    model.fit(
        X,
        Y,
        batch_size=BATCH,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        **kwargs,
    )
