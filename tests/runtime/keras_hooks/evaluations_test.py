"""What an evaluation assigns stays on its worker.

One process, whose evaluations are those of one of several workers; another
worker's update is made on the server itself. The loss is the weight times the
datum, and the rate one: the weight is minus the sum of what was trained on.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.multi_process import tasks
import tfdist
from tfdist.cluster import config as cluster_config
from tfdist.runtime.keras_hooks import evaluations

DATA = 2.0 ** np.arange(4, dtype=np.float32)[:, None]
OTHERS = 64.0


class Looked(keras.layers.Layer):
    """Counts the batches of evaluations in state of its own."""

    def build(self, input_shape):
        del input_shape
        self.looks = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="looks"
        )

    def call(self, inputs, training=False):
        if not training:
            self.looks.assign_add(1.0)
        return inputs


def made(strategy, layers=(), optimizer=None, **compile_arguments):
    """Makes a model of one weight, on a worker that is not alone.

    Args:
        strategy: of it.
        layers: that come first.
        optimizer: arguments of SGD.
        **compile_arguments: more.
    """
    runtime = strategy._runtime
    runtime.evaluations = evaluations.OwnEvaluations(runtime.local.show_anchor)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([1]),
                *layers,
                keras.layers.Dense(
                    1, use_bias=False, kernel_initializer="zeros"
                ),
            ]
        )
        model.compile(
            keras.optimizers.SGD(1.0, **(optimizer or {})),
            loss=tasks.first_output,
            **compile_arguments,
        )
    return model


class Server:
    """The server's copy of a variable of a model."""

    def __init__(self, model, variable):
        self._store = model.distribute_strategy._runtime.store
        self._variable = variable.value

    def _call(self, build):
        variable = self._variable

        @tf.function(autograph=False)
        def call():
            return build(
                self._store.handle(variable, variable.shard, None),
                variable.dtype,
            )

        return call()

    def read(self):
        """Returns its value, a float."""

        def build(handle, dtype):
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)

        return float(tf.squeeze(self._call(build)))

    def push(self):
        """Another worker pushes its gradient."""

        def build(handle, dtype):
            shape = self._variable.shape
            value = tf.fill(shape, tf.constant(OTHERS, dtype))
            tf.raw_ops.AssignSubVariableOp(resource=handle, value=value)

        self._call(build)


class Swap(keras.callbacks.Callback):
    """Evaluates other weights, while another worker pushes its gradient."""

    def __init__(self, ends=True):
        super().__init__()
        self.ends = ends
        self.pushed = 0

    def _begin(self, logs=None):
        self._before = self.model.get_weights()
        self.model.set_weights([0 * w - 1.0 for w in self._before])
        if self.model.optimizer.built:
            Server(self.model, self.model.layers[-1].kernel).push()
            self.pushed += 1

    def _end(self, logs=None):
        if self.ends:
            self.model.set_weights(self._before)

    on_test_begin = on_predict_begin = _begin
    on_test_end = on_predict_end = _end


def kernel_of(model):
    return model.layers[-1].kernel


class Fails(Swap):
    """Ends the evaluation by an exception."""

    def on_test_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


@pytest.mark.nightly
@pytest.mark.parametrize("eagerly", [False, True])
def test_what_an_evaluation_assigns_stays_here(eagerly):
    """Weights that a callback swaps, and state of a layer."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        looked = Looked()
    model = made(strategy, [looked], run_eagerly=eagerly)
    model.fit(DATA, DATA, batch_size=1, verbose=0)
    server = Server(model, kernel_of(model))
    expected = -DATA.sum()

    def check(callback, epochs=0):
        """After an evaluation, and a call of `fit` that goes on from there."""
        nonlocal expected
        assert callback.pushed
        expected -= OTHERS * callback.pushed + epochs * DATA.sum()
        assert server.read() == expected
        assert Server(model, looked.looks).read() == 0.0
        model.fit(DATA, DATA, batch_size=1, verbose=0)
        expected -= DATA.sum()
        assert server.read() == expected
        assert float(kernel_of(model).numpy()[0, 0]) == expected

    callback = Swap()
    model.fit(
        DATA,
        DATA,
        batch_size=1,
        epochs=2,
        validation_data=(DATA, DATA),
        validation_batch_size=4,
        callbacks=[callback],
        verbose=0,
    )
    check(callback, epochs=2)
    for ends in (True, False):
        callback = Swap(ends)
        model.evaluate(DATA, DATA, callbacks=[callback], verbose=0)
        check(callback)
        callback = Swap(ends)
        result = model.predict(DATA, callbacks=[callback], verbose=0)
        # By the weights that were put in place.
        np.testing.assert_array_equal(result, -DATA)
        check(callback)
    callback = Fails()
    with pytest.raises(KeyboardInterrupt):
        model.evaluate(DATA, DATA, callbacks=[callback], verbose=0)
    check(callback)


@pytest.mark.nightly
@pytest.mark.parametrize("eagerly", [False, True])
def test_averaged_weights_that_keras_swaps_stay_here(eagerly):
    model = made(
        tfdist.AsyncStrategy(),
        optimizer={"use_ema": True, "ema_momentum": 0.5},
        run_eagerly=eagerly,
    )

    class Pushes(keras.callbacks.Callback):
        pushed = 0
        seen = []

        def on_test_end(self, logs=None):
            self.seen.append(float(kernel_of(model).numpy()[0, 0]))
            Server(model, kernel_of(model)).push()
            self.pushed += 1

        def on_epoch_end(self, epoch, logs=None):
            # Before Keras puts the average in place.
            self.trained = Server(model, kernel_of(model)).read()

    pushes = Pushes()
    model.fit(
        DATA,
        DATA,
        batch_size=1,
        epochs=2,
        shuffle=False,
        validation_data=(DATA, DATA),
        callbacks=[pushes, keras.callbacks.SwapEMAWeights()],
        verbose=0,
    )
    assert pushes.pushed == 2
    assert pushes.trained == -2 * DATA.sum() - 2 * OTHERS
    assert pushes.seen[0] == means_of(-np.cumsum(DATA[:, 0]))[-1]


def means_of(weights):
    """After each step: m <- m / 2 + w / 2, but the first one sets it."""
    means = [weights[0]]
    for weight in weights[1:]:
        means.append(means[-1] / 2 + weight / 2)
    return means


class Saves(keras.callbacks.Callback):
    """Saves the weights at the end of an evaluation."""

    def __init__(self, path):
        super().__init__()
        self._path = path

    def on_test_end(self, logs=None):
        self.model.save_weights(self._path)


@pytest.mark.nightly
def test_weights_that_a_callback_has_swapped_in_are_saved(tmp_path):
    path = tmp_path / "swapped.weights.h5"
    model = made(tfdist.AsyncStrategy())
    model.fit(DATA, DATA, batch_size=1, verbose=0)
    model.evaluate(DATA, DATA, callbacks=[Saves(path), Swap()], verbose=0)
    assert float(kernel_of(model).numpy()[0, 0]) != -1.0
    model.load_weights(path)
    assert float(kernel_of(model).numpy()[0, 0]) == -1.0


def test_averages_may_not_stay_in_place_between_epochs():
    """Others push updates meanwhile, which swapping back would erase."""
    model = made(tfdist.AsyncStrategy(), optimizer={"use_ema": True})
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    with pytest.raises(ValueError, match="`swap_on_epoch` .* must be False"):
        model.fit(DATA, DATA, callbacks=[swap], verbose=0)


@pytest.mark.nightly
def test_own_steps_outlive_an_evaluation_between_two_exchanges():
    # Of 8 steps no exchange is due before the end.
    model = made(tfdist.ParameterAveragingStrategy(period=10))
    model.fit(
        DATA,
        DATA,
        batch_size=1,
        epochs=2,
        validation_data=(DATA, DATA),
        callbacks=[SwapAlone()],
        verbose=0,
    )
    assert float(kernel_of(model).numpy()[0, 0]) == -2 * DATA.sum()


class Factor(keras.layers.Layer):
    """Multiplies by a number that nothing trains."""

    def build(self, input_shape):
        del input_shape
        self.factor = self.add_weight(
            shape=(), initializer="ones", trainable=False
        )

    def call(self, inputs):
        return inputs * self.factor


@pytest.mark.nightly
@pytest.mark.parametrize("ends", [True, False])
def test_what_is_assigned_between_two_exchanges_is_evaluated_and_put_back(ends):
    """After a training step, before anything has read a weight."""
    strategy = tfdist.ParameterAveragingStrategy(period=2)
    with strategy.scope():
        layer = Factor()
    model = made(strategy, [layer])
    callback = keras.callbacks.LambdaCallback(
        on_test_begin=lambda logs: layer.factor.assign(0.0),
        on_test_end=lambda logs: ends and layer.factor.assign(1.0),
    )
    history = model.fit(
        DATA,
        DATA,
        batch_size=1,
        epochs=2,
        validation_data=(DATA, DATA),
        callbacks=[callback],
        verbose=0,
    ).history
    assert history["val_loss"] == [0.0, 0.0]
    assert float(kernel_of(model).numpy()[0, 0]) == -2 * DATA.sum()


class SwapAlone(Swap):
    """The same, where nobody pushes."""

    def _begin(self, logs=None):
        self._before = self.model.get_weights()
        self.model.set_weights([0 * w - 1.0 for w in self._before])

    on_test_begin = on_predict_begin = _begin


@pytest.mark.nightly
def test_what_a_single_process_assigns_in_an_evaluation_stays():
    strategy = tfdist.AsyncStrategy()
    shared = strategy._runtime.evaluations
    model = made(strategy)
    strategy._runtime.evaluations = shared
    model.fit(DATA, DATA, batch_size=1, verbose=0)
    model.evaluate(DATA, DATA, callbacks=[SwapAlone(ends=False)], verbose=0)
    assert Server(model, kernel_of(model)).read() == -1.0


@pytest.mark.parametrize("own", nightly.also([True], [False]))
def test_the_only_worker_s_servers_keep_weights_while_averages_are_evaluated(
    own,
):
    """It may be killed meanwhile; from one epoch to the next it may swap."""
    strategy = tfdist.AsyncStrategy()
    model = made(strategy, optimizer={"use_ema": True, "ema_momentum": 0.5})
    cluster = {"worker": ["localhost:1"], "ps": ["localhost:2"]}
    config = cluster_config.ClusterConfig(cluster if own else {}, "worker", 0)
    runtime = strategy._runtime
    runtime.evaluations = evaluations.of(config, runtime.local.show_anchor)
    server, seen = Server(model, kernel_of(model)), []
    looks = keras.callbacks.LambdaCallback(
        on_test_batch_end=lambda batch, logs: seen.append(server.read())
    )
    model.fit(
        DATA,
        DATA,
        batch_size=1,
        epochs=2,
        shuffle=False,
        validation_data=(DATA, DATA),
        validation_batch_size=4,
        callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True), looks],
        verbose=0,
    )
    weights = -np.cumsum(np.tile(DATA[:, 0], 2))
    means = means_of(weights)
    assert seen == [(weights if own else means)[step] for step in (3, 7)]
    # Keras ends with the averages.
    assert server.read() == means[-1]


def test_evaluations_of_several_workers_and_of_none_but_this_process():
    worker = ["localhost:1"]
    for cluster, are_own, is_alone in (
        ({}, False, True),
        ({"worker": worker, "ps": ["localhost:2"]}, True, True),
        ({"chief": ["localhost:3"], "worker": worker}, True, False),
    ):
        config = cluster_config.ClusterConfig(cluster, "worker", 0)
        found = evaluations.of(config, None)
        assert (found.are_own, found.is_alone) == (are_own, is_alone)
