"""Asynchronous updates against NumPy, with real delays.

Several virtual workers share one server's resources inside this process, each
with replicas of its own, and take their steps in a given order. So the delay
of every gradient is known, and an oracle written from the papers' formulas
says what the server must hold after each step:

  Downpour SGD (Dean et al. 2012, section 4.1; papers.md 1): the gradient of
  the worker's own copy is applied to the server's newest parameters,
  w <- w - rate * g(w_k), and the worker's copy w_k becomes w.
  Adam (Kingma and Ba 2015, algorithm 1), with the server's moments and the
  server's step number.
"""

import itertools

from absl import logging
from hypothesis import Phase
from hypothesis import given
from hypothesis import strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import laws
from tests import nightly
from tfdist.cluster import config as cluster_config
from tfdist.runtime import runtime
from tfdist.runtime.exchange import subgraph_replay
from tfdist.runtime.keras_hooks import extended
from tfdist.runtime.variables import table

FEATURES, BATCH, RATE = 3, 4, 0.05
_runs = itertools.count()


class VirtualWorker(tf.distribute.Strategy):
    """A worker that shares the server of those with the same `run`."""

    def __init__(
        self,
        run,
        number,
        partitioner=None,
        tables=table.NO_TABLES,
        num_servers=1,
        **parts,
    ):
        devices = [one.name for one in tf.config.list_logical_devices("CPU")]
        self.runtime = runtime.Runtime(
            runtime.Parts(**parts),
            namespace=f"delay_test/{run}",
            devices=devices[:num_servers],
            worker_device=devices[0],
            worker_id=number,
            is_chief=number == 0,
            timeout=10.0,
            partitioner=partitioner,
            tables=tables,
        )
        config = cluster_config.ClusterConfig.local()
        super().__init__(
            extended.ParameterServerExtended(self, self.runtime, config)
        )

    def build(self, make_optimizer, layers=(), loss="mse"):
        """Builds a linear model; the same for every worker."""
        with self.scope():
            self.model = keras.Sequential(
                [
                    keras.Input((FEATURES,)),
                    *[make() for make in layers],
                    keras.layers.Dense(1, kernel_initializer="ones"),
                ]
            )
            self.model.compile(make_optimizer(), loss)
            # Any of them may be the first to train.
            self.model.optimizer.build(self.model.trainable_variables)
        return self

    def step(self, x, y):
        """Takes one step; returns its staleness."""
        self.model.train_on_batch(x, y)
        (exchange,) = self.runtime.journal.read_new()
        return exchange.staleness

    def weights(self):
        """Kernel and bias of this worker's replica as one vector."""
        kernel, bias = self.model.layers[-1].get_weights()
        return np.concatenate([kernel[:, 0], bias]).astype("float64")


class Aside(keras.layers.Layer):
    """Moves statistics of batches, and returns its input as it is."""

    def __init__(self):
        super().__init__()
        self.norm = keras.layers.BatchNormalization(
            momentum=0.9, center=False, scale=False
        )

    def build(self, shape):
        self.norm.build(shape)

    def call(self, x, training=False):
        self.norm(x, training=training)
        return x


class Sgd:
    """w <- w - rate * g."""

    def __init__(self, momentum=0.0):
        self._momentum = momentum
        self._velocity = 0.0

    def apply(self, weights, gradient):
        self._velocity = self._momentum * self._velocity - RATE * gradient
        return weights + self._velocity


class Adam:
    """Algorithm 1 of Kingma and Ba, in its second form (section 2)."""

    def __init__(self, rate=lambda step: RATE):
        self._rate = rate
        self._step = 0
        self._first = self._second = 0.0

    def apply(self, weights, gradient):
        rate = self._rate(self._step)
        self._step += 1
        self._first = 0.9 * self._first + 0.1 * gradient
        self._second = 0.999 * self._second + 0.001 * gradient**2
        scale = np.sqrt(1 - 0.999**self._step) / (1 - 0.9**self._step)
        return weights - rate * scale * self._first / (
            np.sqrt(self._second) + 1e-7
        )


DECAY = keras.optimizers.schedules.InverseTimeDecay(RATE, 3, 0.5)
RULES = {
    "sgd": (lambda: keras.optimizers.SGD(RATE), Sgd),
    "momentum": (
        lambda: keras.optimizers.SGD(RATE, momentum=0.9),
        lambda: Sgd(momentum=0.9),
    ),
    "adam": (lambda: keras.optimizers.Adam(RATE), Adam),
    "adam_decay": (
        lambda: keras.optimizers.Adam(DECAY),
        lambda: Adam(lambda step: RATE / (1 + 0.5 * step / 3)),
    ),
}


def gradient(weights, x, y):
    """Of the mean squared error of x @ kernel + bias, in float64."""
    error = x @ weights[:-1] + weights[-1] - y[:, 0]
    return 2 * np.concatenate([x.T @ error, [error.sum()]]) / len(x)


def batches(count, seed):
    random = np.random.default_rng(seed)
    return [
        (
            random.normal(size=(BATCH, FEATURES)).astype("float32"),
            random.normal(size=(BATCH, 1)).astype("float32"),
        )
        for _ in range(count)
    ]


def check(rule, order, layers=()):
    """Takes steps in `order` and compares each with the oracle."""
    make_optimizer, make_rule = RULES[rule]
    run = next(_runs)
    workers = [
        VirtualWorker(run, k).build(make_optimizer, layers)
        for k in range(max(order) + 1)
    ]
    for worker in workers:  # All pull the same initial parameters.
        worker.runtime.pull()
    server = np.array([1.0] * FEATURES + [0.0])
    copies = [server] * len(workers)
    pulled = [0] * len(workers)
    oracle = make_rule()
    for version, (k, (x, y)) in enumerate(
        zip(order, batches(len(order), seed=len(order)), strict=True)
    ):
        staleness = workers[k].step(x, y)
        assert staleness == version - pulled[k]
        server = oracle.apply(server, gradient(copies[k], x, y))
        copies[k], pulled[k] = server, version + 1
        np.testing.assert_allclose(
            workers[k].weights(), server, rtol=2e-5, atol=2e-6
        )
    assert workers[k].runtime.updates_applied() == [len(order)]
    assert workers[k].model.optimizer.iterations.numpy() == len(order)
    return workers


# Each gradient of worker 1 is 3 updates late.
LATE = [0, 1, 0, 0, 0, 1, 2, 0, 2, 1, 0, 1]


# What the others do is part of these.
@pytest.mark.parametrize("rule", nightly.also(["adam_decay"], ["momentum"]))
def test_late_gradients_are_applied_to_the_newest_parameters(rule):
    workers = check(rule, LATE, [Aside])
    # Each batch's mean enters the server's newest moving mean.
    mean = np.zeros(FEATURES)
    for x, _ in batches(len(LATE), seed=len(LATE)):
        mean = 0.9 * mean + 0.1 * x.mean(axis=0)
    found = workers[LATE[-1]].model.layers[0].norm.moving_mean.numpy()
    np.testing.assert_allclose(found, mean, rtol=1e-5, atol=1e-6)
    # A count that the chief sets is not added to what others have done.
    workers[0].model.optimizer.iterations.assign(7)
    for worker in workers:
        worker.runtime.pull()
        assert worker.model.optimizer.iterations.numpy() == 7


class OfTable(keras.optimizers.schedules.LearningRateSchedule):
    """Looks rates up."""

    def __init__(self, rates):
        super().__init__()
        self.rates = rates

    def __call__(self, step):
        return tf.gather(self.rates, tf.cast(step, tf.int32))


def trained_with(rates, make_schedule):
    """Kernel and its right value where worker 1 has pulled no update."""
    run = next(_runs)
    workers = [
        VirtualWorker(run, k).build(
            lambda: keras.optimizers.SGD(make_schedule())
        )
        for k in range(2)
    ]
    x, y = np.ones([1, FEATURES], "float32"), np.zeros([1, 1], "float32")
    late = gradient(np.array([1.0] * FEATURES + [0.0]), x, y)
    for worker in workers:
        worker.runtime.pull()
    for _ in range(3):
        workers[0].step(x, y)
    before = workers[0].weights()
    workers[1].step(x, y)
    return workers[1].weights(), before - rates[3] * late


RATES = [0.1 / (1 + step) for step in range(8)]


@pytest.mark.parametrize(
    "make",
    [
        # Six operations on scalars for each boundary.
        lambda: keras.optimizers.schedules.PiecewiseConstantDecay(
            list(range(7)), RATES
        ),
        lambda: OfTable(tf.constant(RATES, tf.float32)),
    ],
    ids=["boundaries", "table"],
)
def test_a_late_gradient_has_the_rate_of_now_of_a_long_schedule(
    make, monkeypatch
):
    monkeypatch.setattr(subgraph_replay, "MAX_LIFTED_OPS", 5)
    found, right = trained_with(RATES, make)
    np.testing.assert_allclose(found, right, rtol=1e-5)


def test_a_rate_that_servers_cannot_compute_is_told(monkeypatch):
    told = []
    monkeypatch.setattr(
        logging, "log_first_n", lambda level, text, n: told.append(text)
    )
    found, right = trained_with(
        RATES, lambda: OfTable(tf.Variable(RATES, trainable=False))
    )
    assert not np.allclose(found, right, rtol=1e-5)
    assert "by operations that servers cannot repeat" in told[0]


# Few, as an example's workers are seconds of work, its steps nothing.
@pytest.mark.nightly
@laws.settings(max_examples=3, phases=[Phase.generate])
@given(
    order=st.lists(st.integers(0, 2), min_size=8, max_size=12),
    rule=st.sampled_from(sorted(RULES)),
)
def test_any_order_of_workers(order, rule):
    check(rule, order)


class Shrinking(keras.optimizers.SGD):
    """Sets each weight to a function of itself, as Muon's weight decay does."""

    def apply(self, grads, trainable_variables=None):
        for variable in trainable_variables:
            variable.assign(variable - 0.25 * variable)
        super().apply(grads, trainable_variables)


@pytest.mark.nightly
def test_weights_set_to_a_function_of_old_ones_keep_what_others_did():
    run = next(_runs)
    workers = [
        VirtualWorker(run, k).build(lambda: Shrinking(RATE)) for k in range(2)
    ]
    for worker in workers:
        worker.runtime.pull()
    server = np.array([1.0] * FEATURES + [0.0])
    copies = [server] * 2
    order = [0, 1, 0, 0, 1, 1, 0]
    for k, (x, y) in zip(order, batches(len(order), seed=0), strict=True):
        workers[k].step(x, y)
        change = 0.25 * copies[k] + RATE * gradient(copies[k], x, y)
        server = copies[k] = server - change
        np.testing.assert_allclose(
            workers[k].weights(), server, rtol=2e-5, atol=2e-6
        )


class Positive(keras.layers.Layer):
    """Counts batches whose sum is positive."""

    def build(self, shape):
        self.number = self.add_weight(
            shape=(), initializer="zeros", trainable=False
        )

    def call(self, x, training=False):
        if training:
            # A branch is not built again on a server.
            more = keras.ops.cond(
                keras.ops.sum(x) > 0,
                lambda: self.number + 1.0,
                lambda: self.number + 0.0,
            )
            self.number.assign(more)
        return x


@pytest.mark.nightly
def test_state_that_a_server_cannot_compute_keeps_what_others_did():
    run = next(_runs)
    workers = [
        VirtualWorker(run, k).build(
            lambda: keras.optimizers.SGD(RATE), [Positive]
        )
        for k in range(2)
    ]
    for worker in workers:
        worker.runtime.pull()
    known = batches(len(LATE), seed=0)
    for k, (x, y) in zip(LATE, known, strict=True):
        workers[k % 2].step(x, y)
    workers[0].runtime.pull()
    expected = sum(x.sum() > 0 for x, _ in known)
    assert workers[0].model.layers[0].number.numpy() == expected > 2
