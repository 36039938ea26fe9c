"""Workers that train a small model while a `ClusterMonitor` looks on."""

import keras
import numpy as np

from tests.multi_process import failure_tasks
from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist
from tfdist.testing import Straggler

SEED, EPOCHS, BATCH, FEATURES = 3, 2, 8, 6
# 31 batches, the last one smaller: three workers have 11, 10 and 10 of them.
EXAMPLES = 30 * BATCH + 5
_stream = np.random.default_rng(5)
X = _stream.normal(size=[EXAMPLES, FEATURES]).astype("float32")
Y = np.tanh(X @ _stream.normal(size=[FEATURES, 2])).astype("float32")


def build(optimizer, normalized=False):
    """A compiled model.

    Args:
        optimizer: class name and configuration.
        normalized: whether it has a BatchNormalization.
    """
    layers = keras.layers
    # No bias before it, as its gradient would be nothing but rounding.
    middle = [layers.Dense(8, use_bias=False), layers.BatchNormalization()]
    model = keras.Sequential(
        [
            keras.Input([FEATURES]),
            *(middle if normalized else [layers.Dense(8)]),
            layers.Activation("tanh"),
            layers.Dense(5, activation="tanh"),
            layers.Dense(2),
        ]
    )
    name, config = optimizer
    model.compile(
        keras.optimizers.get({"class_name": name, "config": config}), "mse"
    )
    return model


def train(strategy, arguments, seconds=0.02, **model):
    """Trains, and reports the parameters that come out.

    Args:
        strategy: name of it in `tfdist`.
        arguments: of it.
        seconds: mean of a delay of each step.
        **model: of `build`.
    """
    strategy = getattr(tfdist, strategy)(
        **arguments,
        seed=SEED,
        fault_tolerance=tasks.PATIENT,
    )
    with strategy.scope():
        made = build(**model)
    made.fit(
        X,
        Y,
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[
            tfdist.callbacks.ClusterMonitor("trace", verbose=0),
            failure_tasks.TellProgress("stop"),
            tasks.WaitAfterFirstStep(),
            Straggler(seconds, distribution="lognormal"),
        ],
    )
    handshake.report(
        weights=[w.tolist() for w in made.get_weights()],
        servers=[w.value.shard for w in made.trainable_weights],
    )
