"""What is seen in the middle of a period, and that looking disturbs nothing."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.averaging.virtual_workers import VirtualWorkers
from tests.averaging.virtual_workers import linear
from tests.runtime.exchange import delay_test
from tests.strategies.twins import assert_same
from tests.strategies.twins import classification
from tests.strategies.twins import compiled
from tests.strategies.twins import perceptron
import tfdist
from tfdist.averaging import AccruedGradients
from tfdist.averaging import ElasticAveraging
from tfdist.correction import DANA
from tfdist.synchronization import Async

PERIOD, BATCH = 4, 3
X, Y = classification(30)


class Looks(keras.callbacks.Callback):
    """Looks at the model after each batch, in every way there is."""

    def __init__(self, directory):
        super().__init__()
        self._path = directory / "model.keras"
        self.weights = []

    def on_train_batch_end(self, batch, logs=None):
        weights = self.model.get_weights()
        self.weights.append(weights)
        if batch != 5:
            return
        self.model.save(self._path)
        saved = keras.models.load_model(self._path)
        assert_same(saved.get_weights(), weights, 0.0)
        plain = compiled(perceptron())
        plain.set_weights(weights)
        assert_same(
            self.model.predict(X, verbose=0), plain.predict(X, verbose=0)
        )
        assert_same(
            self.model.evaluate(X, Y, verbose=0),
            plain.evaluate(X, Y, verbose=0),
        )
        self.model.distribute_strategy.pull()


METHODS = {
    "DiLoCo": lambda: tfdist.DiLoCoStrategy(PERIOD),
    "EASGD": lambda: tfdist.ParameterServerStrategy(
        local_steps=ElasticAveraging(PERIOD, alpha=0.5)
    ),
    "Downpour": lambda: tfdist.ParameterServerStrategy(
        local_steps=AccruedGradients(PERIOD, PERIOD)
    ),
}


def train(name, callbacks=(), **arguments):
    """Ten steps; returns the strategy, the model, and `fit`'s history."""
    keras.utils.set_random_seed(5)
    strategy = METHODS[name]()
    with strategy.scope():
        model = compiled(perceptron(), keras.optimizers.SGD(0.3, 0.9))
    fitted = model.fit(
        X,
        Y,
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
        **arguments,
    )
    return strategy, model, fitted.history


@pytest.mark.nightly
@pytest.mark.parametrize("name", METHODS)
def test_what_is_shown_is_what_the_servers_gave_last(name, tmp_path):
    looks = Looks(tmp_path)
    strategy, model, history = train(
        name, [looks], validation_data=(X, Y), validation_batch_size=10
    )
    others, unseen, _ = train(name)
    for steps, shown in enumerate(looks.weights, start=1):
        # The same all through a period, another one in the next.
        if steps % PERIOD:
            assert_same(shown, looks.weights[max(steps - 2, 0)], 0.0)
        elif steps > 1:
            before = looks.weights[steps - 2]
            assert np.abs(shown[0] - before[0]).max() > 1e-4
    # Validation at the end of `fit` is of the same, not of own weights.
    plain = compiled(perceptron())
    plain.set_weights(looks.weights[-1])
    loss, accuracy = plain.evaluate(X, Y, verbose=0)
    assert_same(history["val_loss"][0], loss)
    assert_same(history["val_accuracy"][0], accuracy)
    # Two steps are left; then both have come to the same, to the bit.
    for one in (strategy, others):
        assert [e.local_steps for e in one.journal.read_new()] == [4, 4]
        one.barrier()
        assert [e.local_steps for e in one.journal.read_new()] == [2]
    assert_same(model.get_weights(), unseen.get_weights(), 0.0)
    assert np.abs(model.get_weights()[0] - looks.weights[-1][0]).max() > 1e-4


@pytest.mark.nightly
def test_what_is_left_is_pushed_when_training_has_ended():
    strategy, model, _ = train("DiLoCo")
    ends = [
        lambda: model.evaluate(X, Y, verbose=0),
        model.get_weights,
        strategy.flush,
        strategy.pull,
        strategy.barrier,
    ]
    for end in ends:
        end()
        steps = [e.local_steps for e in strategy.journal.read_new()]
        assert steps == [4, 4, 2]
        # Once: nothing is left.
        strategy.flush()
        strategy.barrier()
        assert strategy.journal.read_new() == []
        model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)


@pytest.mark.nightly
def test_weights_that_are_set_in_the_midst_of_a_period():
    """Own weights follow what is set, as after any other way of setting."""
    strategy, model, _ = train("DiLoCo")
    model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    for weight in model.get_weights():
        assert not weight.any()
    local = strategy._runtime.local
    for variable in model.trainable_variables:
        assert not local._own_values.shadow(variable.value).numpy().any()


@pytest.mark.nightly
def test_the_parameters_are_saved_not_the_look_ahead(tmp_path):
    """Each step's gradient is 1, so an exchange pushes two steps of 1."""

    def build():
        dense = keras.layers.Dense(
            1, use_bias=False, kernel_initializer="zeros"
        )
        return keras.Sequential([keras.Input((1,)), dense])

    plain, found = build(), []

    def save(model):
        model.save_weights(tmp_path / "saved.weights.h5")
        plain.load_weights(tmp_path / "saved.weights.h5")
        found.append(plain.get_weights()[0].item())

    strategy = tfdist.ParameterAveragingStrategy(
        2, synchronization=Async(), correction=DANA("zero", 0.5)
    )
    with strategy.scope():
        model = build()
        model.compile(keras.optimizers.SGD(1.0), lambda _, y: keras.ops.mean(y))
    saves = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batch == 1 and save(model)
    )
    ones = np.ones([4, 1])
    model.fit(ones, ones, batch_size=1, callbacks=[saves], verbose=0)
    save(model)
    # v = 2, theta = -2; from there v = 0.5 * 2 + 2 = 3, theta = -2 - 3.
    assert found == [-2.0, -5.0]


def ends_normally(model):
    """Calls `fit` for a period of two."""
    model.fit(np.ones([2, 1]), np.ones([2, 1]), batch_size=1, verbose=0)


def ends_by_an_exception(model):
    """Has a callback end it before the second period is whole."""

    def fail(batch, logs=None):
        if batch == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        model.fit(
            np.ones([4, 1]),
            np.ones([4, 1]),
            batch_size=1,
            callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=fail)],
            verbose=0,
        )
    model.get_weights()


def has_no_step(model):
    """Calls `fit` without data."""
    examples = tf.data.Dataset.from_tensor_slices((np.ones([1, 1]),) * 2)
    model.fit(examples.batch(1).take(0), verbose=0)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fit", "exchanges"),
    [(ends_normally, 1), (ends_by_an_exception, 2), (has_no_step, 0)],
)
def test_who_looks_in_a_loop_after_a_fit_goes_on_in_periods(fit, exchanges):
    strategy = tfdist.DiLoCoStrategy(2)
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    fit(model)
    model.get_weights()
    for _ in range(4):
        model.train_on_batch(np.ones([1, 1]), np.ones([1, 1]))
        model.get_weights()
    assert strategy.updates_applied() == [exchanges + 2]


class Masks(keras.layers.Layer):
    """Masks its weights and counts, whether it trains or not."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones")
        self.count = self.add_weight(initializer="zeros", trainable=False)

    def call(self, x):
        self.scale.assign(self.scale * [1.0, 0.0])
        self.count.assign_add(1.0)
        return x * self.scale


@pytest.mark.nightly
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_what_an_evaluation_assigns_is_put_back(run_eagerly):
    with tfdist.ParameterAveragingStrategy(period=2).scope():
        model = keras.Sequential([keras.Input([2]), Masks()])
        model.compile(
            keras.optimizers.SGD(1.0),
            lambda _, y: y,
            run_eagerly=run_eagerly,
        )
    x = np.ones([3, 2], "float32")
    found = model.fit(
        x, x, batch_size=1, validation_data=(x, x), verbose=0
    ).history
    # Of the two steps that were exchanged.
    assert found["val_loss"] == [0.0]
    model.predict(x, verbose=0)
    # The gradient is a half, and the second weight 0 before each step.
    scale, count = model.get_weights()
    assert [*scale, count] == [-0.5, -0.5, 3.0]


@pytest.mark.nightly
@pytest.mark.parametrize("in_fit", [False, True])
def test_layers_that_are_frozen_are_trained_upon_as_they_are_evaluated(in_fit):
    """No exchange moves a worker's own weights of theirs any more."""
    method = ElasticAveraging(PERIOD, alpha=0.25)
    with tfdist.ParameterServerStrategy(local_steps=method).scope():
        body = keras.Sequential([keras.Input([2]), keras.layers.Dense(2)])
        model = keras.Sequential([body, keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        x = np.eye(2)
        # The last period is cut short.
        model.fit(x, x, batch_size=1, epochs=PERIOD - 1, verbose=0)
        body.trainable = False
        other = keras.Sequential([body, keras.layers.Dense(2)])
        other.compile(keras.optimizers.SGD(0.0), "mse")
    if in_fit:
        seen = other.fit(x, x, verbose=0).history["loss"][0]
        assert_same(other.evaluate(x, x, verbose=0), seen)
    else:
        shown = other.evaluate(x, x, verbose=0)
        assert_same(other.train_on_batch(x, x), shown)


class Factor(keras.layers.Layer):
    """A factor that no step assigns, and none trains."""

    def build(self, shape):
        self.factor = self.add_weight(initializer="ones", trainable=False)

    def call(self, x):
        return x * self.factor


def own_values(runtime, variables):
    """A worker's own values, a list of arrays."""
    runtime.local.show_anchor()
    return [runtime.local.shadow(v.value).numpy() for v in variables]


@pytest.mark.nightly
def test_own_values_of_all_that_is_not_trained_follow_a_pull():
    """Or else nothing would bring what others have made of them."""
    layers = [
        Factor,
        keras.layers.BatchNormalization,
        lambda: keras.layers.Dense(delay_test.FEATURES, trainable=False),
    ]
    run = VirtualWorkers(
        2,
        ElasticAveraging(PERIOD, alpha=0.25),
        build=linear(lambda: keras.optimizers.SGD(0.1), layers),
    )
    for k in range(2):
        for batch in delay_test.batches(PERIOD, seed=k):
            run.step(k, *batch)
    chief = run.models[0]
    chief.layers[0].factor.assign(3.0)
    chief.layers[2].kernel.assign(keras.ops.ones_like(chief.layers[2].kernel))
    for runtime, model in zip(run.runtimes, run.models, strict=True):
        trained = model.trainable_variables
        before = own_values(runtime, trained)
        runtime.pull()
        assert_same(own_values(runtime, trained), before, 0.0)
        assert before[-1] != trained[-1].numpy()
        others = model.non_trainable_variables
        assert len(others) == 5
        assert_same(own_values(runtime, others), [v.numpy() for v in others])
    assert_same(run.models[1].get_weights(), chief.get_weights(), 0.0)


@pytest.mark.nightly
@pytest.mark.parametrize("is_used", [True, False])
def test_own_weights_stay_when_another_optimizer_is_compiled(is_used):
    """Whether or not Python has collected the one before."""
    method = ElasticAveraging(PERIOD, alpha=0.25)
    strategy = tfdist.ParameterServerStrategy(local_steps=method)
    with strategy.scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.eye(2)
    model.fit(x, x, batch_size=1, epochs=2, verbose=0)
    own = own_values(strategy._runtime, model.variables)
    used = [model.optimizer] if is_used else []
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.1), "mse")
    gc.collect()
    strategy.pull()
    assert len(strategy._runtime.local.inners) == len(used)
    strategy.pull()
    assert_same(own_values(strategy._runtime, model.variables), own, 0.0)
    assert np.abs(own[0] - model.variables[0].numpy()).max() > 1e-3


@pytest.mark.nightly
@pytest.mark.parametrize("of_keras", [True, False])
def test_a_first_eager_step_is_of_own_weights_as_traced_ones_before(of_keras):
    """Its gradient, too, and not only what the optimizer changes."""
    found, x = [], np.eye(2, dtype="float32")
    for run_eagerly in (False, True):
        keras.utils.set_random_seed(1)
        method = ElasticAveraging(PERIOD, alpha=0.25)
        strategy = tfdist.ParameterServerStrategy(local_steps=method)
        with strategy.scope():
            model = keras.Sequential([keras.Input([2]), keras.layers.Dense(2)])
            model.compile(keras.optimizers.SGD(0.1), "mse")

        def step(x, model=model):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - x))
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(gradients, model.trainable_variables)

        if of_keras:
            model.fit(x, x, batch_size=1, epochs=3, verbose=0)
            with strategy.scope():
                model.compile(model.optimizer, "mse", run_eagerly=run_eagerly)
            model.fit(x, x, verbose=0)
        else:
            traced = tf.function(lambda s=strategy, f=step: s.run(f, (x,)))
            for _ in range(PERIOD):
                traced()
            model.get_weights()
            strategy.run(step, (x,)) if run_eagerly else traced()
        found.append(own_values(strategy._runtime, model.variables))
    assert_same(found[1], found[0])
