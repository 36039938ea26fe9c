"""What an update takes of the workers whose gradients it is of, besides.

Whoever comes next carries an update out, also with gradients of others.
"""

from concurrent import futures
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.runtime.coordination import coordinated_exchange_test
from tests.runtime.exchange import delay_test
from tfdist.synchronization import BoundedStaleness
from tfdist.synchronization import SoftSync

STEPS = 20
_runs = itertools.count()


class Sizes(keras.optimizers.SGD):
    """Keeps sums of the sizes of gradients, and how many there were."""

    def build(self, variables):
        """Makes what is kept."""
        if not self.built:
            super().build(variables)
            self.total = self.add_variable((), name="total")
            self.fading = self.add_variable((), name="fading")
            self.last = self.add_variable((2,), name="last")
            self.number = self.add_variable((), name="number")

    def apply(self, grads, trainable_variables=None):
        """Takes a step."""
        size = tf.add_n([tf.reduce_sum(tf.abs(one)) for one in grads])
        self.total.assign_add(size)
        self.fading.assign(0.5 * self.fading + 0.5 * size)
        # Elements that a worker has set are not averaged.
        of_last = tf.IndexedSlices(size[None], tf.constant([1]))
        self.last.value.scatter_update(of_last)
        self.number.assign_add(1.0)
        super().apply(grads, trainable_variables)


def workers_of(method, make_optimizer, loss="mse"):
    run = f"own_settings_test/{next(_runs)}"
    return coordinated_exchange_test.make_workers(
        run, 2, method, rule=make_optimizer, loss=loss
    )


def size_of(worker, x, y):
    gradient = delay_test.gradient(worker.weights(), x, y)
    return np.abs(gradient).sum()


@pytest.mark.nightly
def test_an_average_of_gradients_comes_with_the_mean_of_what_is_made_of_them():
    workers = workers_of(SoftSync(s=2), lambda: Sizes(0.0))
    known = delay_test.batches(4, seed=3)
    sizes = []
    for worker, (x, y) in zip(workers * 2, known, strict=True):
        sizes.append(size_of(worker, x, y))
        worker.step(x, y)
    first, second = np.mean(np.reshape(sizes, [2, 2]), 1)
    optimizer = workers[1].model.optimizer
    workers[1].runtime.pull()
    assert optimizer.number.numpy() == 2
    np.testing.assert_allclose(optimizer.total, first + second, rtol=1e-5)
    fading = 0.25 * first + 0.5 * second
    np.testing.assert_allclose(optimizer.fading, fading, rtol=1e-5)
    # Of the worker of the lowest number.
    np.testing.assert_allclose(optimizer.last, [0, sizes[2]], rtol=1e-5)


def trained_in_turns(workers, batches):
    """Each worker takes all steps with a batch of its own, with others'."""

    def train(worker, batch):
        for _ in range(STEPS):
            worker.model.train_on_batch(*batch)

    with futures.ThreadPoolExecutor() as threads:
        list(threads.map(train, workers, batches))
    workers[0].runtime.pull()


def test_each_gradient_comes_with_what_its_worker_has_made_of_it():
    workers = workers_of(BoundedStaleness(0), lambda: Sizes(0.0))
    known = delay_test.batches(2, seed=3)
    trained_in_turns(workers, known)
    optimizer = workers[0].model.optimizer
    assert optimizer.number.numpy() == 2 * STEPS
    sizes = [size_of(workers[0], x, y) for x, y in known]
    np.testing.assert_allclose(optimizer.total, STEPS * sum(sizes), rtol=1e-5)


RATE, DECAY, SCALES = 1 / 64, 0.5, (1.0, 4.0)
# The gradient of the kernel is zero, that of the bias one.
X, Y = np.zeros([1, delay_test.FEATURES]), np.zeros([1, 1])


def sum_of_predictions(y, predictions):
    """A loss whose gradients are the same for all weights."""
    del y
    return keras.ops.sum(predictions, axis=-1)


class Scaled(keras.optimizers.schedules.LearningRateSchedule):
    """A rate that falls after many updates, times the worker's own scale."""

    def __init__(self, scale):
        self.scale = tf.Variable(scale, trainable=False)

    def __call__(self, step):
        falls = tf.where(step < 10**6, RATE, RATE / 2)
        return tf.cast(falls, "float32") * self.scale


def scaled_workers(method):
    scales = iter(SCALES)

    def make_optimizer():
        schedule = Scaled(next(scales))
        optimizer = keras.optimizers.SGD(schedule, weight_decay=DECAY)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return optimizer

    return workers_of(method, make_optimizer, sum_of_predictions)


def check_weights(worker, scales):
    """Compares with updates of these scales."""
    decayed = np.prod([1 - DECAY * RATE * scale for scale in scales])
    right = [decayed] * delay_test.FEATURES + [-RATE * sum(scales)]
    np.testing.assert_allclose(worker.weights(), right, rtol=1e-5)


@pytest.mark.nightly
def test_each_gradient_has_the_rate_that_its_worker_s_schedule_reads():
    workers = scaled_workers(BoundedStaleness(0))
    trained_in_turns(workers, [(X, Y)] * 2)
    check_weights(workers[0], SCALES * STEPS)


def test_an_average_has_the_rate_of_the_lowest_worker_of_a_schedule():
    workers = scaled_workers(SoftSync(s=2))
    # The lowest may be the last, and is not the one that carries it out.
    for k in (0, 1, 1, 0, 0, 1):
        workers[k].step(X, Y)
    check_weights(workers[1], SCALES[:1] * 3)
