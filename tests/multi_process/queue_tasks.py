"""Workers that take portions, and weights that count the examples.

Each example is a row of its own of the unit matrix, the loss is the sum of the
outputs, and SGD has a rate of one: the weight of an example is minus the
number of times that it has been trained on.
"""

import os
import time

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist
from tfdist import synchronization

EXAMPLES = 101
BATCH_SIZE = 2
BATCHES = 51
# Of three workers: 13 of three batches, three of two, six of one.
PORTIONS = 22


class _SumOfOutputs(keras.losses.Loss):
    """The sum, times the sample weights."""

    def __init__(self):
        super().__init__(reduction="sum")

    def call(self, y_true, y_pred):
        """Returns the outputs."""
        del y_true
        return y_pred[:, 0]


class _Hold(keras.callbacks.Callback):
    """Tells of each step; waits after some until the test tells a name."""

    def __init__(self, holds, pace, stop_at):
        """Makes the callback.

        Args:
            holds: by number of steps, the name.
            pace: seconds between steps.
            stop_at: number of steps after which training stops, or None.
        """
        super().__init__()
        self._pace = pace
        self._stop_at = stop_at
        self._steps = handshake.Tally(f"{tasks.label()}.steps")
        self._made = 0
        self._holds = {int(step): name for step, name in holds.items()}

    def on_train_batch_end(self, batch, logs=None):
        """Counts, and waits if need be."""
        del batch, logs
        self._made += 1
        self._steps.add()
        if self._made in self._holds:
            handshake.wait_for(self._holds[self._made])
        if self._made == self._stop_at:
            self.model.stop_training = True
        time.sleep(self._pace)


class _EpochCounts(keras.callbacks.Callback):
    """The weights at the end of each epoch, on the servers."""

    def __init__(self, strategy):
        """Makes the callback."""
        super().__init__()
        self._strategy = strategy
        self.counts = []

    def on_epoch_end(self, epoch, logs=None):
        """Looks at the servers."""
        del epoch, logs
        self._strategy.pull()
        self.counts.append(_counts(self.model))


def _counts(model):
    parts = [w.reshape(-1, EXAMPLES) for w in model.get_weights()]
    return [(-part).tolist() for part in np.concatenate(parts)]


def _arrays(shuffle):
    x = np.eye(EXAMPLES, dtype=np.float32)
    y = np.zeros([EXAMPLES, 1], np.float32)
    return {"x": x, "y": y, "batch_size": BATCH_SIZE, "shuffle": shuffle}


def _dataset():
    x = np.eye(EXAMPLES, dtype=np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, np.zeros([EXAMPLES, 1])))
    return {"x": data.shuffle(EXAMPLES).batch(BATCH_SIZE)}


DATA = {
    "arrays": lambda: _arrays(True),
    "in order": lambda: _arrays(False),
    "dataset": _dataset,
}
METHODS = {
    "async": lambda **kwargs: tfdist.AsyncStrategy(**kwargs),
    "dc_asgd": lambda **kwargs: tfdist.ParameterServerStrategy(
        correction=tfdist.correction.DelayCompensation(0.0, None), **kwargs
    ),
    "softsync": lambda **kwargs: tfdist.ParameterServerStrategy(
        synchronization=synchronization.SoftSync(1), **kwargs
    ),
}


def train(
    data="arrays",
    method="async",
    fits=1,
    holds=None,
    outputs=1,
    steps_per_execution=1,
    portions_per_worker=8,
    worker_timeout=60.0,
    pace=0.0,
    stop_at=None,
    **arguments,
):
    """Trains; reports how often each example was seen.

    Args:
        data: of `DATA`.
        method: of `METHODS`.
        fits: how many calls of `fit`.
        holds: see `_Hold`.
        outputs: layers, each with a weight for each example.
        steps_per_execution: of `compile`.
        portions_per_worker: of the strategy.
        worker_timeout: of the strategy.
        pace: see `_Hold`.
        stop_at: see `_Hold`.
        **arguments: of `fit`.
    """
    strategy = METHODS[method](
        work="queue",
        portions_per_worker=portions_per_worker,
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=60.0, worker_timeout=worker_timeout
        ),
    )
    with strategy.scope():
        entry = keras.Input([EXAMPLES])
        layers = [
            keras.layers.Dense(
                1, use_bias=False, kernel_initializer="zeros", name=f"part{k}"
            )
            for k in range(outputs)
        ]
        found = [layer(entry) for layer in layers]
        model = keras.Model(entry, sum(found[1:], found[0]))
        model.compile(
            keras.optimizers.SGD(1.0),
            loss=_SumOfOutputs(),
            steps_per_execution=steps_per_execution,
        )
    hold = _Hold(holds or {}, pace, stop_at)
    epochs = _EpochCounts(strategy)
    histories, portions = [], []
    for _ in range(fits):
        history = model.fit(
            **DATA[data](), verbose=0, callbacks=[hold, epochs], **arguments
        )
        histories.append(history.epoch)
        portions.append(strategy.portion_counts())
    handshake.report(
        counts=_counts(model),
        by_epoch=epochs.counts,
        epochs=histories,
        portions=portions,
        gradients=strategy.gradient_counts(),
        pushes=strategy.push_counts(),
        updates=strategy.updates_applied(),
        pid=os.getpid(),
    )
