"""What `tf.random` draws in the steps of workers that have the same seed."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist import one_replica


def _drawn(worker):
    """What the first step of a worker draws, and what is drawn beside it."""
    tf.random.set_seed(5)

    @tf.function
    def step():
        with one_replica.own_random_numbers(worker):
            inside = tf.function(lambda: tf.random.normal([3]))()
        return inside, tf.random.normal([3])

    return [tensor.numpy() for tensor in step()]


def test_each_worker_draws_its_own_numbers():
    (first, beside), *others = map(_drawn, range(3))
    for inside, outside in others:
        assert not np.isin(inside, first).any()
        np.testing.assert_array_equal(outside, beside)
    assert not np.isin(others[0][0], others[1][0]).any()


def test_the_first_worker_draws_what_plain_keras_does():
    tf.random.set_seed(5)

    @tf.function
    def step():
        return tf.function(lambda: tf.random.normal([3]))()

    np.testing.assert_array_equal(_drawn(0)[0], step())


@pytest.mark.parametrize("name", ["AsyncStrategy", "AllReduceStrategy"])
def test_strategies_use_it(name, monkeypatch):
    workers = []

    @contextlib.contextmanager
    def note(worker):
        workers.append(worker)
        yield

    monkeypatch.setattr(one_replica, "own_random_numbers", note)
    strategy = getattr(tfdist, name)()
    tf.function(lambda: strategy.run(lambda: tf.random.normal([])))()
    assert workers == [0]
