"""Layers that are frozen for a while, and trained on by the same optimizer."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.runtime.exchange import delay_test
import tfdist

_runs = itertools.count()
X = np.linspace(-1.0, 1.0, 4 * delay_test.FEATURES, dtype="float32")
X = X.reshape([4, delay_test.FEATURES])


def hidden():
    return keras.layers.Dense(2, kernel_initializer="ones", use_bias=False)


def compiled(optimizer):
    """A model whose optimizer knows all its weights."""
    model = keras.Sequential(
        [
            keras.Input([delay_test.FEATURES]),
            hidden(),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )
    model.compile(optimizer, "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def trained(model, frozen):
    """Weights after steps with and without a frozen layer, arrays."""
    optimizer, found = model.optimizer, []
    for trains in (True, False, True):
        frozen(model).trainable = trains
        model.compile(optimizer, "mse")
        for _ in range(2):
            model.train_on_batch(X, X[:, :1])
        found.append(model.get_weights())
    return found


@pytest.mark.parametrize("number", nightly.also([0], [1]))
def test_each_server_counts_steps_of_an_optimizer_that_update_others(number):
    """Else Adam would correct moments there as those of fewer steps."""

    def make_optimizer():
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
        return keras.optimizers.Adam(schedule)

    run = f"frozen_layers_test/{next(_runs)}"
    worker = delay_test.VirtualWorker(run, 0, num_servers=2)
    worker.build(make_optimizer, [hidden])
    homes = {weight.value.shard for weight in worker.model.weights}
    assert homes == {0, 1}
    plain = compiled(make_optimizer())
    with worker.scope():
        seen = trained(worker.model, lambda model: model.layers[number])
    right = trained(plain, lambda model: model.layers[number])
    assert_equal(seen, right)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [0, 1])
def test_momentum_of_slim_goes_on_as_that_of_keras(number):
    """That of one worker is Nesterov's. Other corrections begin anew."""
    strategy = tfdist.DANAStrategy("slim", momentum=0.5)
    with strategy.scope():
        seen = trained(
            compiled(keras.optimizers.SGD(0.01)),
            lambda model: model.layers[number],
        )
    nesterov = keras.optimizers.SGD(0.01, momentum=0.5, nesterov=True)
    right = trained(compiled(nesterov), lambda model: model.layers[number])
    assert_equal(seen, right)


def assert_equal(seen, right):
    for found, expected in zip(seen, right, strict=True):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_each_server_counts_steps_that_train_tf_variables_of_others():
    run = f"frozen_layers_test/{next(_runs)}"
    worker = delay_test.VirtualWorker(run, 0, num_servers=2)
    with worker.scope():
        heads = [tf.Variable(0.0, name=f"head{k}") for k in range(2)]
        optimizer = keras.optimizers.SGD(
            keras.optimizers.schedules.PiecewiseConstantDecay(
                [0, 1], [1.0, 0.5, 0.25]
            )
        )
        optimizer.build(heads)
    assert {head.shard for head in heads} == {0, 1}

    @tf.function
    def train(number):
        head = heads[number]
        worker.run(lambda: optimizer.apply([tf.ones([])], [head]))

    for number in (0, 1, 0):
        train(number)
    assert [float(head) for head in heads] == [-1.25, -0.5]
