"""Refusals of `fit` with L-BFGS, in one process."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.sandblaster import tasks
from tests.sandblaster.fits import fit
from tests.sandblaster.fits import own_step
from tests.sandblaster.fits import small_model
import tfdist

pytestmark = pytest.mark.usefixtures("float64")


def test_layers_with_a_changing_state_are_refused(strategy):
    model = small_model(
        strategy, keras.layers.Dropout(0.5), keras.layers.Dense(1)
    )
    with pytest.raises(ValueError, match="must not change its state"):
        fit(model, 1)


def test_other_optimizers_are_refused(strategy):
    model = small_model(strategy, keras.layers.Dense(1), optimizer="sgd")
    with pytest.raises(ValueError, match="LBFGS"):
        fit(model, 1)


def test_constraints_are_refused(strategy):
    model = small_model(
        strategy, keras.layers.Dense(1, kernel_constraint="non_neg")
    )
    with pytest.raises(ValueError, match="constraint"):
        fit(model, 1)


def test_half_precision_is_refused(strategy):
    model = small_model(strategy, keras.layers.Dense(1, dtype="float16"))
    with pytest.raises(ValueError, match="float16"):
        fit(model, 1)


class Extreme(keras.metrics.Metric):
    """The largest or smallest prediction."""

    def __init__(self, choose, first):
        super().__init__(name="extreme")
        self._choose, self._first = choose, first
        self.found = self.add_variable((), "zeros", name="found")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Looks at a batch."""
        found = keras.ops.cast(self._choose(y_pred), self.found.dtype)
        pair = keras.ops.stack([self.found.value, found])
        self.found.assign(self._choose(pair))

    def result(self):
        """Returns it."""
        return self.found

    def reset_state(self):
        """Begins again."""
        self.found.assign(self._first)


@pytest.mark.parametrize(
    ("choose", "first"), [(keras.ops.max, 0.0), (keras.ops.min, 1e9)]
)
def test_metrics_that_are_no_sums_are_refused(strategy, choose, first):
    model = small_model(
        strategy,
        keras.layers.Dense(1, bias_initializer="ones"),
        metrics=[Extreme(choose, first)],
    )
    with pytest.raises(ValueError, match="sums over the data.*found"):
        fit(model, 1)


class ExtremeTarget(Extreme):
    """The largest or smallest target, or what else is chosen."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(None, y_true)


@pytest.mark.nightly
@pytest.mark.parametrize("batch_size", [20, 8])
def test_metrics_that_are_0_at_first_are_checked_later(strategy, batch_size):
    # Of one portion or of several, it is not the first batch that tells.
    y = np.ones(tasks.EXAMPLES)
    y[:50] = 0
    model, other = (
        small_model(
            strategy,
            keras.layers.Dense(1, "sigmoid"),
            metrics=[ExtremeTarget(choose, 0.0), "mae"],
        )
        for choose in (keras.ops.sum, keras.ops.max)
    )
    logs = fit(model, 1, batch_size, y=y).history
    assert logs["extreme"] == [y.sum()]
    found = model.evaluate(tasks.data()[0], y, verbose=0, return_dict=True)
    assert logs["mae"][0] == pytest.approx(found["mae"])
    assert logs["loss"][0] == pytest.approx(found["loss"])
    with pytest.raises(ValueError, match="sums over the data.*found"):
        fit(other, 1, batch_size, y=y)


def test_random_numbers_that_no_seed_tells_of_are_refused(strategy):
    class Noise(keras.Layer):
        def call(self, x):
            return x + tf.random.normal(tf.shape(x), dtype=x.dtype)

    model = small_model(strategy, Noise(), keras.layers.Dense(1))
    with pytest.raises(ValueError, match="two losses of one batch"):
        fit(model, 1)


@pytest.mark.nightly
def test_weights_that_a_callback_sets_are_refused(strategy, tmp_path):
    model = tasks.make_model(strategy)

    class Sets(keras.callbacks.Callback):
        puts_back = False

        def on_epoch_end(self, epoch, logs=None):
            weights = self.model.get_weights()
            self.model.set_weights([w + 1 for w in weights])
            self.model.save(tmp_path / "model.keras")
            if self.puts_back:
                self.model.set_weights(weights)

    sets = Sets()
    with pytest.raises(RuntimeError, match="must not be changed during `fit`"):
        fit(model, 2, callbacks=[sets])
    assert len(fit(model, 1, callbacks=[sets]).history["loss"]) == 1
    sets.puts_back = True
    assert len(fit(model, 2, callbacks=[sets]).history["loss"]) == 2


def test_logs_that_are_no_metrics_are_refused(strategy):
    model = own_step(strategy)
    model.more = ("norm",)
    with pytest.raises(ValueError, match=r"results of the.*\['norm'\]"):
        fit(model, 1)


def test_a_scaled_loss_is_refused(strategy):
    policy = keras.DTypePolicy("mixed_float16")
    with strategy.scope():
        inputs = keras.Input((tasks.FEATURES,))
        model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        model.dtype_policy = policy
        model.compile(tfdist.sandblaster.LBFGS(), loss="mse")
    with pytest.raises(ValueError, match="auto_scale_loss=False"):
        fit(model, 1)


def test_a_train_step_without_a_loss_is_refused(strategy):
    class Own(keras.Model):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(data[0]))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    with strategy.scope():
        inputs = keras.Input((tasks.FEATURES,))
        model = Own(inputs, keras.layers.Dense(1)(inputs))
        model.compile(tfdist.sandblaster.LBFGS())
    with pytest.raises(ValueError, match="scale_loss"):
        fit(model, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "No gradients provided for any variable"),
        (["kernel", "bias"], "trainable variables only.*bias"),
    ],
)
def test_a_train_step_with_other_gradients_is_refused(strategy, given, message):
    class Own(keras.Model):
        def train_step(self, data):
            variables = self.layers[-1].weights
            loss = self.optimizer.scale_loss(tf.reduce_mean(self(data[0])))
            gradients = [
                tf.zeros(v.shape, v.dtype) if v.name in given else None
                for v in variables
            ]
            self.optimizer.apply(gradients, variables)
            return {"loss": loss}

    with strategy.scope():
        inputs = keras.Input((tasks.FEATURES,))
        layer = keras.layers.Dense(1)
        model = Own(inputs, layer(inputs))
        layer.bias.trainable = False
        model.compile(tfdist.sandblaster.LBFGS(), run_eagerly=True)
    with pytest.raises(ValueError, match=message):
        fit(model, 1)


@pytest.mark.nightly
def test_it_has_no_step_of_a_batch(strategy):
    model = tasks.make_model(strategy)
    x, y = tasks.data()
    with pytest.raises(RuntimeError, match="no step of one batch"):
        model.train_on_batch(x, y)
    fit(model, 1)
    with pytest.raises(RuntimeError, match="no step of one batch"):
        model.train_on_batch(x, y)
    variable = keras.Variable(1.0)
    with pytest.raises(RuntimeError, match="SandblasterStrategy"):
        tfdist.sandblaster.LBFGS().apply([tf.constant(1.0)], [variable])


@pytest.mark.nightly
def test_a_fit_within_a_fit_is_refused(strategy):
    model, other = (tasks.make_model(strategy) for _ in range(2))

    class Fits(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            fit(other, 1)

    with pytest.raises(NotImplementedError, match="within another"):
        fit(model, 1, callbacks=[Fits()])
    assert len(fit(other, 1).history["loss"]) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"memory": 0},
        {"damping": 1},
        {"line_search": "newton"},
        {"gradient_tolerance": -1.0},
    ],
)
def test_settings_of_lbfgs_that_make_no_sense_are_refused(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=f"Argument `{name}` must be"):
        tfdist.sandblaster.LBFGS(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"portions_per_worker": 0},
        {"backup_after": 1.0},
    ],
)
def test_settings_of_the_strategy_that_make_no_sense_are_refused(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=f"Argument `{name}` must be"):
        tfdist.SandblasterStrategy(**settings)


def test_an_evaluator_is_refused(monkeypatch):
    cluster = {"worker": ["a:1"], "ps": ["b:1"], "evaluator": ["c:1"]}
    task = {"type": "worker", "index": 0}
    text = json.dumps({"cluster": cluster, "task": task})
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match='"evaluator" for SandblasterStrategy'):
        tfdist.SandblasterStrategy()
