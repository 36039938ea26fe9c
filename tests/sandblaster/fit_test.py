"""`fit` with L-BFGS in one process."""

import json

import keras
import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from tests.sandblaster import tasks
import tfdist
from tfdist.sandblaster import portion_gradients


@pytest.fixture(scope="module")
def strategy():
    return tfdist.SandblasterStrategy(portions_per_worker=5)


@pytest.fixture(autouse=True)
def float64():
    """So that values are told apart near the minimum."""
    before = keras.config.floatx()
    policy = keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy(policy)


def fit(model, epochs, batch_size=20, **arguments):
    """Trains on the data of `tasks`, of which the last batch is smaller."""
    x, targets = tasks.data()
    y = arguments.pop("y", targets)
    arguments.setdefault("shuffle", False)
    return model.fit(
        x, y, batch_size=batch_size, epochs=epochs, verbose=0, **arguments
    )


def small_model(strategy, *layers, optimizer=None, **arguments):
    """A compiled model of some layers."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((tasks.FEATURES,)), *layers])
        model.compile(
            optimizer or tfdist.sandblaster.LBFGS(), loss="mse", **arguments
        )
    return model


def test_it_ends_at_the_minimum(strategy):
    model = tasks.make_model(strategy)
    history = fit(model, 200)
    scipys = scipy.optimize.minimize(
        tasks.loss,
        np.zeros(18),
        jac=True,
        method="L-BFGS-B",
        options={"ftol": 0, "gtol": 1e-9},
    )
    assert len(history.history["loss"]) < 50
    assert strategy.iterations[-1]["outcome"] == "converged"
    np.testing.assert_allclose(
        tasks.weights_of(model), scipys.x, atol=1e-6, rtol=0
    )
    np.testing.assert_allclose(history.history["loss"][-1], scipys.fun)


def test_logs_are_those_of_all_data_at_the_new_parameters(strategy):
    model = tasks.make_model(strategy)
    x, y = tasks.data()

    class Looks(keras.callbacks.Callback):
        seen = []

        def on_epoch_end(self, epoch, logs=None):
            del epoch
            value, _ = tasks.loss(np.array(tasks.weights_of(self.model)))
            right = np.argmax(self.model.predict(x, verbose=0), 1) == y
            np.testing.assert_allclose(logs["loss"], value)
            np.testing.assert_allclose(
                logs["accuracy"], right.mean(), rtol=1e-6
            )
            self.seen.append(logs["loss"])

    fit(model, 4, callbacks=[Looks()], validation_data=(x, y))
    assert len(Looks.seen) == 4
    assert Looks.seen == sorted(Looks.seen, reverse=True)
    assert int(model.optimizer.iterations) == 4


@pytest.mark.parametrize(
    "way",
    ["run_eagerly", pytest.param("jit_compile", marks=pytest.mark.nightly)],
)
def test_other_ways_to_run_a_step_do_the_same(strategy, way):
    losses = []
    for used in (False, True):
        model = tasks.make_model(strategy)
        setattr(model, way, used)
        losses.append(fit(model, 4).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-12)


def test_a_second_fit_goes_on_where_the_first_has_ended(strategy):
    whole, parts = (tasks.make_model(strategy) for _ in range(2))
    expected = fit(whole, 7).history["loss"]
    found = [*fit(parts, 3).history["loss"], *fit(parts, 4).history["loss"]]
    assert found == expected


def test_weights_that_a_user_sets_are_where_the_next_fit_begins(strategy):
    model = tasks.make_model(strategy)
    first = fit(model, 3).history["loss"]
    model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    assert fit(model, 3).history["loss"] == first


def change_loss(strategy, model):
    with strategy.scope():
        model.compile(tfdist.sandblaster.LBFGS(), loss="mae")


def change_frozen_weights(strategy, model):
    layer = model.layers[0]
    layer.set_weights([2 * weights for weights in layer.get_weights()])


@pytest.mark.parametrize(
    "change",
    [
        change_loss,
        pytest.param(change_frozen_weights, marks=pytest.mark.nightly),
    ],
)
def test_another_loss_is_another_function(strategy, change):
    def made():
        return small_model(
            strategy,
            keras.layers.Dense(2, "tanh", trainable=False),
            keras.layers.Dense(1),
        )

    model, other = made(), made()
    fit(model, 3)
    change(strategy, model)
    if change is change_loss:
        change(strategy, other)
    other.set_weights(model.get_weights())
    found, expected = (fit(one, 2).history["loss"] for one in (model, other))
    assert found == expected
    x, y = tasks.data()
    np.testing.assert_allclose(found[-1], model.evaluate(x, y, verbose=0))


def test_what_workers_compare_has_frozen_weights_and_no_seeds(strategy):
    model = small_model(
        strategy,
        keras.layers.Dense(2, trainable=False),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1),
    )
    made = portion_gradients.PortionGradients(strategy, model, [tasks.data()])
    kernel, bias = made.untrained()
    np.testing.assert_array_equal(kernel, model.layers[0].kernel)
    np.testing.assert_array_equal(bias, np.zeros(2))


@pytest.mark.nightly
def test_metrics_may_be_others_at_the_minimum(strategy):
    optimizer = tfdist.sandblaster.LBFGS(gradient_tolerance=1.0)
    model = small_model(strategy, keras.layers.Dense(1), optimizer=optimizer)
    fit(model, 9)
    with strategy.scope():
        model.compile(optimizer, loss="mse", metrics=["mae"])
    logs = fit(model, 9).history
    x, y = tasks.data()
    assert strategy.iterations[-1]["outcome"] == "converged"
    np.testing.assert_allclose(
        [*logs["loss"], *logs["mae"]], model.evaluate(x, y, verbose=0)
    )


@pytest.mark.nightly
def test_other_data_is_another_function(strategy):
    model = tasks.make_model(strategy)
    fit(model, 5)
    x, y = tasks.data()
    history = model.fit(
        x[:50], y[:50], batch_size=20, epochs=1, verbose=0, shuffle=False
    )
    first = strategy.iterations[-1]
    assert first["evaluations"] >= 2
    assert history.history["loss"][0] == pytest.approx(first["value"])


@pytest.mark.nightly
def test_steps_per_epoch_batches_are_the_data(strategy):
    x, y = tasks.data()
    endless = tf.data.Dataset.from_tensor_slices((x, y)).batch(24).repeat()
    losses = []
    for data, steps in ((endless, 4), (endless.take(4), None)):
        model = tasks.make_model(strategy)
        losses.append(
            model.fit(data, steps_per_epoch=steps, epochs=3, verbose=0).history[
                "loss"
            ]
        )
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3


def test_progress_is_shown_within_an_iteration(strategy):
    seen = []

    class Looks(keras.Model):
        def train_step(self, data):
            seen.append(strategy.progress())
            return super().train_step(data)

    model = tasks.make_model(strategy, Looks)
    model.run_eagerly = True
    before = strategy.progress()["evaluations"]
    fit(model, 1)
    # The first batch is computed twice before all others.
    del seen[:2]
    assert [one["evaluations"] - before for one in seen[:10]] == [1] * 5 + [
        2
    ] * 5
    assert [one["done"] for one in seen[:10]] == [0, 1, 2, 3, 4] * 2
    assert {one["portions"] for one in seen} == {5}
    after = strategy.progress()
    assert (after["iterations"], after["portions"]) == (1, 0)


@pytest.mark.nightly
def test_early_stopping_sees_the_loss(strategy):
    model = tasks.make_model(strategy)
    stops = keras.callbacks.EarlyStopping("loss", min_delta=0.01, patience=0)
    losses = fit(model, 50, callbacks=[stops]).history["loss"]
    assert losses[-2] - losses[-1] < 0.01
    assert len(losses) < 15


@pytest.mark.nightly
def test_inputs_may_be_a_structure(strategy):
    x, y = tasks.data()
    with strategy.scope():
        inputs = {name: keras.Input((tasks.FEATURES,)) for name in "ab"}
        joined = keras.layers.Add()(list(inputs.values()))
        model = keras.Model(inputs, keras.layers.Dense(1)(joined))
        model.compile(tfdist.sandblaster.LBFGS(), loss="mse")
    model.fit({"a": x, "b": -x}, y, epochs=9, verbose=0, shuffle=False)
    # Of a constant, the mean is the best one.
    np.testing.assert_allclose(strategy.iterations[-1]["value"], np.var(y))


def test_sample_weights_count(strategy):
    x, y = tasks.data()
    weights = np.linspace(0, 2, len(x))
    model = tasks.make_model(strategy)
    model.fit(
        x,
        y,
        sample_weight=weights,
        batch_size=32,
        epochs=1,
        verbose=0,
        shuffle=False,
    )
    whole = model.evaluate(x, y, sample_weight=weights, verbose=0)[0]
    np.testing.assert_allclose(strategy.iterations[-1]["value"], whole)


@pytest.mark.parametrize(
    "layer", [keras.layers.Dropout, keras.layers.BatchNormalization]
)
def test_layers_with_a_changing_state_are_refused(strategy, layer):
    arguments = {"rate": 0.5} if layer is keras.layers.Dropout else {}
    model = small_model(strategy, layer(**arguments), keras.layers.Dense(1))
    with pytest.raises(ValueError, match="must not change its state"):
        fit(model, 1)


@pytest.mark.nightly
def test_normalization_that_was_adapted_is_not(strategy):
    layer = keras.layers.Normalization()
    layer.adapt(tasks.data()[0])
    fit(small_model(strategy, layer, keras.layers.Dense(1)), 1)


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


def test_random_numbers_that_no_seed_tells_of_are_refused(strategy):
    class Noise(keras.Layer):
        def call(self, x):
            return x + tf.random.normal(tf.shape(x), dtype=x.dtype)

    model = small_model(strategy, Noise(), keras.layers.Dense(1))
    with pytest.raises(ValueError, match="two losses of one batch"):
        fit(model, 1)


def test_weights_that_a_callback_sets_are_refused(strategy):
    model = tasks.make_model(strategy)

    class Sets(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            weights = self.model.get_weights()
            self.model.set_weights([w + 1 for w in weights])

    with pytest.raises(RuntimeError, match="must not be changed during `fit`"):
        fit(model, 2, callbacks=[Sets()])
    assert len(fit(model, 1, callbacks=[Sets()]).history["loss"]) == 1


class OwnStep(keras.Model):
    """A `train_step` without metrics."""

    more = ()

    def train_step(self, data):
        """Returns the loss of the batch as it is."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x)[:, 0] - tf.cast(y, x.dtype)) ** 2)
            loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, **dict.fromkeys(self.more, loss)}


def own_step(strategy):
    with strategy.scope():
        inputs = keras.Input((tasks.FEATURES,))
        model = OwnStep(inputs, keras.layers.Dense(1)(inputs))
        model.compile(tfdist.sandblaster.LBFGS(), loss="mse", metrics=["mae"])
    return model


def test_the_log_of_a_train_step_without_metrics_is_the_loss(strategy):
    logs = fit(own_step(strategy), 2).history
    values = [one["value"] for one in strategy.iterations[-2:]]
    assert logs == {"loss": values}


def test_logs_that_are_no_metrics_are_refused(strategy):
    model = own_step(strategy)
    model.more = ("norm",)
    with pytest.raises(ValueError, match=r"results of the.*\['norm'\]"):
        fit(model, 1)


@pytest.mark.nightly
def test_losses_of_several_outputs_are_those_of_evaluate(strategy):
    x, y = tasks.data()
    with strategy.scope():
        inputs = keras.Input((tasks.FEATURES,))
        outputs = {name: keras.layers.Dense(1)(inputs) for name in "ab"}
        model = keras.Model(inputs, outputs)
        model.compile(tfdist.sandblaster.LBFGS(), loss={"a": "mse", "b": "mae"})
    targets = {"a": y, "b": -y}
    logs = fit(model, 2, y=targets).history
    found = model.evaluate(
        x, targets, batch_size=20, verbose=0, return_dict=True
    )
    for name, values in logs.items():
        np.testing.assert_allclose(values[-1], found[name], err_msg=name)


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


def test_a_saved_model_goes_on_with_its_memory(strategy, tmp_path):
    whole, parts = (
        tasks.make_model(strategy, memory=3, line_search="armijo")
        for _ in range(2)
    )
    expected = fit(whole, 7).history["loss"]
    losses = fit(parts, 3).history["loss"]
    parts.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == parts.optimizer.get_config()
    losses += fit(loaded, 4).history["loss"]
    assert losses == expected


class Stops(keras.Model):
    """A model whose training stops at the first batch if it is told to."""

    stops = False

    def train_step(self, data):
        """As Keras's."""
        if self.stops:
            raise KeyboardInterrupt
        return super().train_step(data)


@pytest.mark.nightly
def test_a_fit_that_is_stopped_at_once_keeps_the_memory(strategy, tmp_path):
    whole, parts = (tasks.make_model(strategy, Stops) for _ in range(2))
    expected = fit(whole, 5).history["loss"][3:]
    fit(parts, 3)
    parts.stops = True
    with pytest.raises(KeyboardInterrupt):
        fit(parts, 2)
    parts.stops = False
    parts.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(
            tmp_path / "model.keras", custom_objects={"Stops": Stops}
        )
    assert fit(parts, 2).history["loss"] == expected
    assert fit(loaded, 2).history["loss"] == expected


@pytest.mark.nightly
def test_a_saved_memory_is_of_no_use_with_other_weights(strategy, tmp_path):
    model = tasks.make_model(strategy)
    first = fit(model, 3).history["loss"]
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    loaded.set_weights([np.zeros_like(w) for w in model.get_weights()])
    assert fit(loaded, 3).history["loss"] == first


@pytest.mark.nightly
def test_a_model_without_a_memory_is_saved_and_loaded(strategy, tmp_path):
    model = tasks.make_model(strategy)
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert len(fit(loaded, 2).history["loss"]) == 2


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
        {"memory": True},
        {"damping": 1},
        {"line_search": "newton"},
        {"gradient_tolerance": -1.0},
        {"gradient_tolerance": "small"},
        {"value_tolerance": float("nan")},
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
        {"portions_per_worker": True},
        {"backup_after": 1.0},
        {"backup_after": "soon"},
    ],
)
def test_settings_of_the_strategy_that_make_no_sense_are_refused(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=f"Argument `{name}` must be"):
        tfdist.SandblasterStrategy(**settings)


def test_helpers_are_refused(monkeypatch):
    cluster = {"worker": ["a:1"], "ps": ["b:1"], "helper": ["c:1"]}
    task = {"type": "worker", "index": 0}
    text = json.dumps({"cluster": cluster, "task": task})
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match='"helper" for SandblasterStrategy'):
        tfdist.SandblasterStrategy()
