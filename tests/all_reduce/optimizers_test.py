"""Optimizers whose `apply_gradients` is the user's own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.all_reduce import programs
import tfdist


class Outer(keras.optimizers.Optimizer):
    """Leaves steps to another one, which it builds in its first."""

    def __init__(self, inner):
        super().__init__(learning_rate=0.0)
        self.inner = inner

    def apply_gradients(self, grads_and_vars):
        """Takes a step of the other."""
        return self.inner.apply_gradients(grads_and_vars)


def fixed_rate():
    """A rate of 1 that is no number: those come from the chief alone."""
    return keras.optimizers.schedules.PiecewiseConstantDecay([9], [1.0, 1.0])


@pytest.fixture
def strategy(monkeypatch):
    """One with another worker, whose gradient of one weight is more by 2."""
    made = tfdist.AllReduceStrategy()
    monkeypatch.setattr(
        made._engine.collectives,
        "sum",
        lambda vector, *_: 2 * vector + 2 * tf.one_hot(0, tf.size(vector)),
    )
    return made


@pytest.mark.parametrize("eagerly", nightly.also([False], [True]))
def test_it_gets_the_means_and_is_one_step(strategy, eagerly):
    with strategy.scope():
        model = programs.linear(
            programs.Squaring(fixed_rate()), run_eagerly=eagerly
        )
    x = np.ones([1, 1], "float32")
    for step in (1, 2):
        model.train_on_batch(x, x)
        # The mean of 1 and 3, squared.
        assert programs.weight_of(model) == -4.0 * step
        assert int(model.optimizer.iterations) == step
        assert strategy.updates_applied() == [step]


@pytest.mark.nightly
def test_it_is_not_used_where_it_is_not_called(strategy):
    with strategy.scope():
        optimizer = programs.Squaring(fixed_rate())
        weight = keras.Variable([0.0])

    @tf.function
    def step():
        optimizer.apply([tf.ones([1])], [weight])
        optimizer.apply_gradients([(tf.ones([1]), weight)])

    strategy.run(step)
    assert weight.numpy() == -2.0 - 4.0


def test_it_may_leave_the_step_to_another_optimizer(strategy):
    """The means are for that one, whose steps count."""
    with strategy.scope():
        model = programs.linear(Outer(programs.Squaring(fixed_rate())))
    x = np.ones([1, 1], "float32")
    for step in (1, 2):
        model.train_on_batch(x, x)
        assert programs.weight_of(model) == -4.0 * step
        assert strategy.updates_applied() == [step]


def test_arguments_that_other_workers_do_not_have_are_refused():
    class Scaled(keras.optimizers.SGD):
        def apply_gradients(self, grads_and_vars, scale=1.0):
            pairs = [(scale * g, v) for g, v in grads_and_vars]
            return super().apply_gradients(pairs)

    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        optimizer = Scaled(1.0)
        weight = keras.Variable([0.0])

    def step():
        optimizer.apply_gradients([(tf.ones([1]), weight)], scale=2.0)

    with pytest.raises(NotImplementedError, match=r"Received: \['scale'\]"):
        strategy.run(step)
