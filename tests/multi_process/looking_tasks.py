"""Workers of which one looks at the data, or at other weights, by itself.

Gradients are the data, powers of two, and SGD has the rate one: the weight is
minus the sum of the batches that were trained on.
"""

import pathlib
import random

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import data_tasks
from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist

BATCHES = 8
ALL = [2.0**k for k in range(BATCHES)]
# What a data set of counted lines has left of them.
COUNTED = ALL[1:7]
_LINES = ("1\n2\n4\n", "8\n16\n32\n64\n128\n")


def _pair(x):
    return tf.reshape(x, [1]), tf.reshape(x, [1])


def _powers():
    return tf.data.Dataset.from_tensor_slices(np.array(ALL, np.float32))


class _Powers(keras.utils.PyDataset):
    """Batch k is two to the k; in an order of its own, which it draws."""

    def __init__(self, draws):
        super().__init__()
        self._random = np.random.default_rng(5)
        self._order = np.arange(BATCHES)
        self._draws = draws

    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        batch = np.full([1, 1], ALL[self._order[index]], np.float32)
        return batch, batch

    def on_epoch_end(self):
        if self._draws:
            self._random.shuffle(self._order)


def _lines():
    names = []
    for number, text in enumerate(_LINES):
        path = pathlib.Path(f"{number}-{tasks.label()}.txt")
        path.write_text(text)
        names.append(str(path))
    return (
        tf.data.TextLineDataset(names)
        .skip(1)
        .take(len(COUNTED))
        .map(tf.strings.to_number)
    )


KINDS = {
    "shuffled": lambda: _powers().map(_pair).shuffle(BATCHES, seed=3).batch(1),
    "hasty": lambda: (
        _powers()
        .map(_pair, num_parallel_calls=4, deterministic=False)
        .shuffle(BATCHES, seed=3)
        .batch(1)
    ),
    "counted": lambda: _lines().map(_pair).batch(1),
    "shuffled by Keras": lambda: _Powers(draws=False),
    "drawn": lambda: _Powers(draws=True),
}


class Swap(keras.callbacks.Callback):
    """Evaluates other weights, and puts back those that were there."""

    def on_test_begin(self, logs=None):
        """Puts others in place."""
        self._before = self.model.get_weights()
        self.model.set_weights([0 * w - 1.0 for w in self._before])

    def on_test_end(self, logs=None):
        """Puts them back."""
        self.model.set_weights(self._before)


def look(kinds):
    """Trains on each kind of data, at which the chief has looked before.

    Args:
        kinds: names of `KINDS`.
    """
    strategy = tfdist.AsyncStrategy(fault_tolerance=tasks.PATIENT)
    is_chief = strategy.cluster.is_chief
    seen, found = [], {}
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([1]),
                data_tasks.Recorder(lambda x: seen.extend(map(float, x))),
                keras.layers.Dense(
                    1, use_bias=False, kernel_initializer="zeros"
                ),
            ]
        )
        model.compile(keras.optimizers.SGD(1.0), loss=tasks.first_output)
    for kind in kinds:
        data = KINDS[kind]()
        if is_chief:
            if isinstance(data, tf.data.Dataset):
                next(iter(data))
            model.evaluate(data, verbose=0)
            # Of Python's own numbers, from which Keras draws.
            random.random()
        print("fit", kind, flush=True)
        epochs = []
        for _ in range(2):
            model.fit(data, verbose=0)
            epochs.append(seen.copy())
            seen.clear()
            strategy.barrier()
        found[kind] = epochs
    weight = float(model.get_weights()[0][0, 0])
    print("swap", flush=True)
    ones = np.ones([4, 1], np.float32)
    model.fit(
        tasks.own_data(1.0),
        steps_per_epoch=5,
        epochs=4,
        validation_data=(ones, ones),
        callbacks=[Swap()],
        verbose=0,
    )
    strategy.barrier()
    handshake.report(
        found=found,
        weight=weight,
        swapped=float(model.get_weights()[0][0, 0]),
        updates=strategy.updates_applied(),
    )
