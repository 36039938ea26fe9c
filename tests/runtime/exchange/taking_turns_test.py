"""Two workers that take turns train as one worker in plain Keras.

Each brings the newest values before its step, so nothing is stale: what is
not the same at the end was kept by a worker instead of the server, or was
changed by both in a way that lost one change.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.runtime.exchange.delay_test import VirtualWorker
from tests.strategies import optimizer_cases
from tests.strategies.twins import assert_same
from tests.strategies.twins import compiled

# A loss scale and gradients that accumulate belong to each worker.
CASES = [
    "MultiOptimizer",
    "Nadam",
    "ScheduleFreeAdamW",
    "SGD momentum",
    "all at once",
]
SOME = ["SGD momentum"]
_runs = itertools.count()


def _build(scope, name):
    keras.utils.set_random_seed(1)
    with scope:
        model = optimizer_cases.build_model(name in optimizer_cases.DENSE)
        compiled(model, optimizer_cases.CASES[name]())
        model.optimizer.build(model.trainable_variables)
    return model


def _state(model):
    return [
        model.get_weights(),
        [v.numpy() for v in model.optimizer.variables],
    ]


@pytest.mark.parametrize(
    "name",
    nightly.also(SOME, [name for name in CASES if name not in SOME]),
)
def test_two_workers_that_take_turns(name):
    plain = _build(tf.distribute.get_strategy().scope(), name)
    run = f"turns {next(_runs)}"
    workers = [VirtualWorker(run, number) for number in range(2)]
    models = [_build(worker.scope(), name) for worker in workers]
    batches = list(optimizer_cases.data())
    for number in range(7):
        x, y = batches[number % len(batches)]
        worker, model = workers[number % 2], models[number % 2]
        worker.runtime.pull()
        model.reset_metrics()
        plain.reset_metrics()
        found = model.train_on_batch(x, y)
        assert_same(found, plain.train_on_batch(x, y))
    for worker, model in zip(workers, models, strict=True):
        worker.runtime.pull()
        assert_same(_state(model), _state(plain))
    # Each took steps.
    counts = [worker.runtime.journal.count for worker in workers]
    optimizers = 2 if name == "MultiOptimizer" else 1
    np.testing.assert_array_equal(counts, [4 * optimizers, 3 * optimizers])
