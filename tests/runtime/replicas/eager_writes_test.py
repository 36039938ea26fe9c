"""Eager reads and assignments of replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.averaging import virtual_workers
from tests.runtime.exchange import delay_test
import tfdist
from tfdist import private_keras
from tfdist.runtime.variables.server_scope import read_replica


def fit(model):
    """Makes two exchanges, after which its replicas of state are old."""
    x = np.ones([4, 1], np.float32)
    model.fit(x, x, batch_size=2, verbose=0)


@pytest.mark.nightly
def test_what_a_worker_assigns_stays_until_its_next_exchange():
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input([1]), keras.layers.BatchNormalization()]
        )
        model.compile("sgd", "mse")
    synchronizer = strategy._runtime.synchronizer
    mean = model.layers[0].moving_mean
    fit(model)
    trained = float(mean.numpy()[0])
    fit(model)
    # As on a worker that is not the chief.
    synchronizer.writes_pass = False
    mean.assign([7.0])
    synchronizer.writes_pass = True
    assert mean.numpy() == [7.0]
    fit(model)
    # Servers have not heard of it: m <- 0.99 m + 0.01, four times.
    expected = 1.0 - (1.0 - trained) * 0.99**4
    np.testing.assert_allclose(mean.numpy(), [expected], rtol=1e-5)


class Scaled(keras.layers.Layer):
    """Multiplies by a factor, which no step assigns."""

    def build(self, shape):
        """Makes the factor."""
        del shape
        self.factor = self.add_weight(initializer="ones", trainable=False)

    def call(self, x):
        """Returns the product."""
        return self.factor * x


@pytest.mark.parametrize(
    "of_all", nightly.also([False], [True]), ids=["factor", "iterations"]
)
def test_a_factor_that_a_worker_sets_stays_whatever_is_read(of_all):
    """The chief may be in another epoch, and have set another one."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        layer = Scaled()
        model = keras.Sequential(
            [keras.Input([1]), layer, keras.layers.Dense(1)]
        )
        model.compile("adam", "mse")
    x = np.ones([4, 1], np.float32)
    fit(model)
    synchronizer = strategy._runtime.synchronizer
    synchronizer.writes_pass = False
    layer.factor.assign(7.0)
    synchronizer.writes_pass = True
    for _ in range(2):
        model.train_on_batch(x, x)
        # As a callback does that shows one of them.
        (model.optimizer.variables[0] if of_all else layer.factor).numpy()
        assert read_replica(layer.factor.value) == 7.0
    strategy.pull()
    assert layer.factor.numpy() == 1.0
    # And from then on the servers' counts.
    model.train_on_batch(x, x)
    assert layer.factor.numpy() == 1.0


@pytest.mark.nightly
def test_assignment_is_not_undone_by_a_recovery_during_it(monkeypatch):
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    fit(model)
    runtime = strategy._runtime
    call, lost = runtime.recovery.call, []

    def lose_a_server(function, *args):
        if not lost:
            lost.append(function)
            runtime.synchronizer.pull_committed()
        return call(function, *args)

    monkeypatch.setattr(runtime.recovery, "call", lose_a_server)
    kernel, iterations = model.layers[0].kernel, model.optimizer.iterations
    for variable, value in ((kernel, [[7.0]]), (iterations, 9)):
        lost.clear()
        variable.assign(value)
        assert lost
        assert variable.numpy() == value
        strategy.pull()
        assert variable.numpy() == value


def test_parameters_and_statistics_that_are_read_are_of_one_moment():
    """Callbacks keep them as the best weights."""
    run = next(delay_test._runs)
    first, other = (
        delay_test.VirtualWorker(run, number).build(
            lambda: keras.optimizers.SGD(0.5, momentum=0.5), [delay_test.Aside]
        )
        for number in range(2)
    )
    x = np.ones([4, delay_test.FEATURES], np.float32)
    first.step(x, x[:, :1])
    trained = [read_replica(v.value) for v in first.model.weights]
    other.step(5 * x, x[:, :1])
    read = first.model.get_weights()
    for before, after in zip(trained, read, strict=True):
        np.testing.assert_array_equal(after, before)
    # m <- 0.9 m + 0.1, then 0.9 m + 0.5.
    mean = first.model.layers[0].norm.moving_mean
    np.testing.assert_allclose(mean.numpy(), 3 * [0.1], rtol=1e-6)
    first.runtime.pull()
    np.testing.assert_allclose(mean.numpy(), 3 * [0.59], rtol=1e-6)


def accumulating():
    return keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)


def by_keras(models, directory):
    """All load what the first model's optimizer saves."""
    saved = {}
    models[0].optimizer.save_own_variables(saved)
    for model in models:
        model.optimizer.load_own_variables(saved)


def by_checkpoint(models, directory):
    """The same, with TensorFlow's means."""
    path = tf.train.Checkpoint(model=models[0]).write(directory / "saved")
    for model in models:
        tf.train.Checkpoint(model=model).read(path).assert_consumed()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("make", "load"),
    [
        (accumulating, by_keras),
        (
            lambda: keras.optimizers.LossScaleOptimizer(
                accumulating(), initial_scale=1.0
            ),
            by_keras,
        ),
        (accumulating, by_checkpoint),
    ],
)
def test_workers_that_load_a_step_counter_stay_in_step(tmp_path, make, load):
    """What is saved between two updates has one step too many."""
    workers = virtual_workers.VirtualWorkers(
        2,
        None,
        build=virtual_workers.linear(make),
    )
    counter, _ = private_keras.counter_of(workers.models[1].optimizer)
    batch = np.ones([1, delay_test.FEATURES]), np.ones([1, 1])
    for _ in range(3):
        workers.step(0, *batch)
    load(workers.models, tmp_path)
    for made in (0, 1, 2):
        for k in (0, 1):
            workers.step(k, *batch)
        workers.runtimes[1].pull()
        # Each makes the second step of an update, and the first of the next.
        assert read_replica(counter.value) == [6, 7, 10][made]
