"""Averages of weights (`use_ema`) that several asynchronous workers train.

The oracle is Keras's rule, over the updates in the order of the server: the
average becomes the weights after the first update, and later

    average <- momentum * average + (1 - momentum) * weights.
"""

from concurrent import futures
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.runtime.exchange import delay_test
import tfdist

STEPS, RATE, MOMENTUM = 150, 0.5, 0.99
_runs = itertools.count()


def average_of(history):
    """The average after the last of some updates.

    Args:
      history: The weights after each of them.
    """
    average, *rest = history
    for weights in rest:
        average = MOMENTUM * average + (1 - MOMENTUM) * weights
    return average


def averaging(scaled):
    optimizer = keras.optimizers.SGD(RATE, use_ema=True, ema_momentum=MOMENTUM)
    if scaled:
        # Its step is in a branch: it is left out if the gradient overflows.
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


class SumOfPredictions(keras.losses.Loss):
    """Its gradient is that of the inputs alone, whatever the weights are."""

    def call(self, y_true, y_pred):
        return keras.ops.sum(y_pred, axis=-1)


def virtual_workers(scaled, eagerly=False):
    """Two workers with one weight each, which begin with the same value."""
    run = f"averaged_weights_{next(_runs)}"
    workers = [delay_test.VirtualWorker(run, k) for k in range(2)]
    for worker in workers:
        with worker.scope():
            worker.model = keras.Sequential(
                [
                    keras.Input([1]),
                    keras.layers.Dense(
                        1, use_bias=False, kernel_initializer="zeros"
                    ),
                ]
            )
            worker.model.compile(
                averaging(scaled), SumOfPredictions(), run_eagerly=eagerly
            )
            worker.model.optimizer.build(worker.model.trainable_variables)
        worker.runtime.pull()
    return workers


def value_and_average(worker):
    """What the worker has pulled of the weight and of its average."""
    worker.runtime.pull()
    optimizer = worker.model.optimizer
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    (average,) = [v for v in optimizer.variables if "average" in v.path]
    return worker.model.get_weights()[0].item(), average.numpy().item()


# A whole step is one exchange, or an average may miss the weights of an
# update: another worker's came before it.
@pytest.mark.parametrize("scaled", nightly.also([False], [True]))
def test_an_average_has_seen_the_weights_after_each_update(scaled):
    workers = virtual_workers(scaled)
    ones = tf.ones([1, 1])

    def train(worker):
        for _ in range(STEPS):
            worker.model.train_on_batch(ones, ones)

    with futures.ThreadPoolExecutor() as threads:
        list(threads.map(train, workers))
    weights = -RATE * np.arange(1, 2 * STEPS + 1)
    for worker in workers:
        np.testing.assert_allclose(
            value_and_average(worker),
            [weights[-1], average_of(weights)],
            rtol=1e-5,
        )


@pytest.mark.nightly
def test_an_average_is_of_the_weights_on_the_server():
    workers = virtual_workers(scaled=False)
    history = []
    # Each step of the second worker begins with weights that are 2 updates old.
    for number, k in enumerate([0, 0, 1, 0, 0, 1, 1, 0]):
        inputs = tf.fill([1, 1], number + 1.0)
        workers[k].model.train_on_batch(inputs, inputs)
        history.append(-RATE * sum(range(1, number + 2)))
        np.testing.assert_allclose(
            value_and_average(workers[k]),
            [history[-1], average_of(history)],
            rtol=1e-5,
        )


@pytest.mark.nightly
def test_an_eager_step_sends_the_change_of_the_average_that_it_has_pulled():
    workers = virtual_workers(scaled=False, eagerly=True)
    weight, average, pulled = 0.0, 0.0, [0.0, 0.0]
    for number, k in enumerate([0, 0, 1, 0, 0, 1, 1, 0]):
        inputs = tf.fill([1, 1], number + 1.0)
        workers[k].model.train_on_batch(inputs, inputs)
        weight -= RATE * (number + 1)
        momentum = MOMENTUM if number else 0.0
        average += (1 - momentum) * (weight - pulled[k])
        pulled[k] = average
    # Looked at now alone: whoever looks at an average has it.
    np.testing.assert_allclose(
        value_and_average(workers[0]), [weight, average], rtol=1e-5
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "make",
    nightly.also(
        [tfdist.BoundedStalenessStrategy],
        [tfdist.DCASGDStrategy, tfdist.AsyncStrategy],
    ),
)
def test_an_average_of_one_worker_begins_with_its_first_weights(make):
    with make().scope():
        model = keras.Sequential(
            [
                keras.Input([1]),
                keras.layers.Dense(
                    1, use_bias=False, kernel_initializer="zeros"
                ),
            ]
        )
        model.compile(averaging(False), SumOfPredictions())
    ones = np.ones([STEPS, 1], "float32")
    model.fit(ones, ones, batch_size=1, verbose=0)
    weights = -RATE * np.arange(1, STEPS + 1)
    np.testing.assert_allclose(
        model.get_weights()[0].item(), average_of(weights), rtol=1e-5
    )
