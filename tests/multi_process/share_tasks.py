"""Workers that take shares of all that `fit` takes, and train on sums.

The model is the input times one weight, the loss its mean, and SGD has a rate
of one: the gradient of a batch is its mean, and the weight is minus the sum of
what was trained on.
"""

import itertools
import pathlib

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import data_tasks
from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist
from tfdist import synchronization

# Batches of a worker, where each has some.
STEPS = 4
_SHAPE = [1, 1]


class _Batches(keras.utils.PyDataset):
    """Batch k is k + 1."""

    def __init__(self, number, **kwargs):
        super().__init__(**kwargs)
        self._number = number

    def __len__(self):
        return self._number

    def __getitem__(self, index):
        return _batch(index + 1)


def _batch(value):
    return np.full(_SHAPE, value, np.float32), np.zeros(_SHAPE, np.float32)


def _generate(values):
    for value in values:
        yield _batch(value)


def _from_generator(number):
    spec = tf.TensorSpec([None, 1], tf.float32)
    return tf.data.Dataset.from_generator(
        lambda: _generate(range(1, number + 1)), output_signature=(spec, spec)
    ).prefetch(2)


def _files(workers, full, others=0):
    """A file for each worker; of those of others less passes a filter."""
    names = []
    for worker in range(workers):
        path = pathlib.Path(f"{full}-{others}-{worker}-{tasks.label()}.txt")
        last = STEPS if worker == full else others
        numbers = [k if k <= last else -k for k in range(1, STEPS + 1)]
        path.write_text("".join(f"{number}\n" for number in numbers))
        names.append(str(path))

    def parse(line):
        number = tf.strings.to_number(line)[None]
        return number, number

    lines = tf.data.TextLineDataset(names).map(parse)
    return lines.filter(lambda x, y: x[0] > 0).batch(1)


def _endless(workers):
    del workers
    numbers = _generate(itertools.count(1))
    half = STEPS // 2
    return [
        {"x": numbers, "steps_per_epoch": 1, "epochs": half},
        {"x": numbers, "steps_per_epoch": half},
    ]


def _arrays(workers):
    x = np.arange(1, STEPS * workers + 1, dtype=np.float32)[:, None]
    return {"x": x, "y": x, "batch_size": 1, "shuffle": False}


# What `fit` is called with, by the number of workers.
PROGRAMS = {
    "endless generator": _endless,
    "generator": lambda n: [
        {"x": _generate(range(1, STEPS * n + 1)), "epochs": 2}
    ],
    "last file": lambda n: [{"x": _files(n, n - 1), "epochs": 2}],
    "first file": lambda n: [{"x": _files(n, 0), "epochs": 2}],
    "first file longer": lambda n: [
        {
            "x": _files(n, 0, STEPS // 2),
            "steps_per_epoch": STEPS // 2,
            "epochs": 2,
        }
    ],
    "tf.data": lambda n: [{"x": _from_generator(STEPS * n)}],
    "PyDataset": lambda n: [{"x": _Batches(STEPS * n), "shuffle": False}],
    "threads": lambda n: [
        {"x": _Batches(STEPS * n, workers=2), "shuffle": False, "epochs": 2}
    ],
    "threads and steps": lambda n: [
        {
            "x": _Batches(STEPS * n, workers=2),
            "shuffle": False,
            "steps_per_epoch": STEPS // 2,
            "epochs": 2,
        }
    ],
    "arrays": lambda n: [_arrays(n)],
}


def _strategy(method, workers):
    kwargs = {"fault_tolerance": tasks.PATIENT}
    alone = synchronization.Sync(backup_workers=workers - 1, on_drop="retry")
    make = {
        "Async": lambda: tfdist.AsyncStrategy(**kwargs),
        "Sync": lambda: tfdist.ParameterServerStrategy(
            synchronization=synchronization.Sync(), **kwargs
        ),
        "backup workers": lambda: tfdist.ParameterServerStrategy(
            synchronization=alone, **kwargs
        ),
    }
    return make[method]()


def train(method, workers, programs):
    """Trains on data of several kinds; reports what it has trained on.

    Args:
        method: of training.
        workers: their number.
        programs: names of `PROGRAMS`.
    """
    strategy = _strategy(method, workers)
    worker = strategy.cluster.worker_id
    seen = []
    with strategy.scope():
        # Built by the first `fit`.
        model = keras.Sequential(
            [
                data_tasks.Recorder(lambda x: seen.extend(map(float, x))),
                keras.layers.Dense(
                    1, use_bias=False, kernel_initializer="zeros"
                ),
            ]
        )
        model.compile(keras.optimizers.SGD(1.0), loss=tasks.first_output)
    results = {}
    for name in programs:
        for fit in PROGRAMS[name](workers):
            print("fit", name, flush=True)
            history = model.fit(verbose=0, **fit)
            assert len(history.epoch) == fit.get("epochs", 1)
            # So that all begin the next one together.
            strategy.barrier()
        results[name] = {
            "seen": seen.copy(),
            "weight": model.get_weights()[0].item(),
            "loss": model.evaluate(np.ones(_SHAPE), np.ones(_SHAPE), verbose=0),
        }
        seen.clear()
        # Nobody trains on before all have looked.
        pathlib.Path(f"{name} {worker}").touch()
        for other in range(workers):
            handshake.wait_for(f"{name} {other}")
    handshake.report(results=results)
