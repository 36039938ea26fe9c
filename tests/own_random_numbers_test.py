"""What `tf.random` draws in the steps of workers that have the same seed."""

import contextlib
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
import tfdist
from tfdist import own_random_numbers
from tfdist.cluster.config import ClusterConfig


def _config(task_type, index=0):
    addresses = [f"localhost:{k + 1}" for k in range(5)]
    spec = {"worker": addresses[:3], "ps": addresses[3:4]}
    if task_type == "evaluator":
        spec["evaluator"] = addresses[4:]
    return ClusterConfig(spec, task_type, index)


def _drawn(config):
    """What the first step of a task draws, and what is drawn beside it."""
    tf.random.set_seed(5)

    @tf.function
    def step():
        with own_random_numbers.of(config):
            inside = tf.function(lambda: tf.random.normal([3]))()
        return inside, tf.random.normal([3])

    return [tensor.numpy() for tensor in step()]


def test_each_worker_draws_its_own_numbers():
    workers = [_config("worker", k) for k in range(3)]
    (first, beside), *others = map(_drawn, workers)
    for inside, outside in others:
        assert not np.isin(inside, first).any()
        np.testing.assert_array_equal(outside, beside)
    assert not np.isin(others[0][0], others[1][0]).any()


@pytest.mark.parametrize("task_type", ["worker", "evaluator"])
def test_the_first_worker_draws_what_plain_keras_does(task_type):
    tf.random.set_seed(5)

    @tf.function
    def step():
        return tf.function(lambda: tf.random.normal([3]))()

    np.testing.assert_array_equal(_drawn(_config(task_type))[0], step())


@pytest.mark.parametrize("name", ["AsyncStrategy", "AllReduceStrategy"])
def test_strategies_use_it(name, monkeypatch):
    configs = []

    @contextlib.contextmanager
    def note(config):
        configs.append(config)
        yield None

    monkeypatch.setattr(own_random_numbers, "of", note)
    strategy = getattr(tfdist, name)()
    tf.function(lambda: strategy.run(lambda: tf.random.normal([])))()
    assert configs == [strategy.cluster]


class Noisy(keras.optimizers.SGD):
    """Adds noise to each gradient, as Langevin dynamics do."""

    def __init__(self, by_keras):
        super().__init__(1.0)
        self.seed = keras.random.SeedGenerator(3) if by_keras else None

    def update_step(self, gradient, variable, learning_rate):
        if self.seed is None:
            noise = tf.random.normal(tf.shape(gradient))
        else:
            noise = keras.random.normal([1], seed=self.seed)
        super().update_step(gradient + noise, variable, learning_rate)


def _trained(kind, worker, monkeypatch, by_keras, takes_part=(True, True)):
    """A weight after a worker's steps, in some of which it has no batch."""
    tf.random.set_seed(5)
    strategy = kind()
    with monkeypatch.context() as patch:
        patch.setattr(
            strategy._engine,
            "config",
            types.SimpleNamespace(worker_id=worker, is_worker=True),
        )
        with strategy.scope():
            weight, optimizer = keras.Variable([0.0]), Noisy(by_keras)
        step = tf.function(
            lambda: strategy.run(
                lambda: optimizer.apply([tf.zeros([1])], [weight])
            )
        )
        for has_batch in takes_part:
            if has_batch:
                step()
            else:
                (lane,) = strategy._engine._lanes.values()
                lane.follow(present=1.0, gradients=1.0)
    return float(weight[0])


@pytest.mark.parametrize("by_keras", nightly.also([False], [True]))
def test_all_make_the_same_noisy_update(by_keras, monkeypatch):
    first, second = (
        _trained(tfdist.AllReduceStrategy, worker, monkeypatch, by_keras)
        for worker in range(2)
    )
    assert first == second
    if by_keras:  # Of `tf.random` each traced step has a state of its own.
        takes_part = True, False
        alone = _trained(
            tfdist.AllReduceStrategy, 1, monkeypatch, by_keras, takes_part
        )
        assert alone == pytest.approx(first, rel=1e-6)


@pytest.mark.parametrize("by_keras", [False, True])
@pytest.mark.parametrize(
    "name", nightly.also(["PeerToPeerStrategy"], ["GossipStrategy"])
)
def test_each_peer_makes_a_noisy_update_of_its_own(name, by_keras, monkeypatch):
    kind = getattr(tfdist, name)
    first, second = (
        _trained(kind, worker, monkeypatch, by_keras) for worker in range(2)
    )
    assert first != second
