"""`fit` with L-BFGS in one process."""

from unittest import mock

import keras
import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from tests.sandblaster import tasks
from tests.sandblaster.fits import fit
from tests.sandblaster.fits import own_step
from tests.sandblaster.fits import small_model
import tfdist
from tfdist.cluster import preemption
from tfdist.sandblaster import minimizing_fit
from tfdist.sandblaster import portion_gradients

pytestmark = pytest.mark.usefixtures("float64")


class Looks(keras.callbacks.Callback):
    """Checks the logs of the first epochs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        """They are those of all data at the new parameters."""
        self.seen.append(logs["loss"])
        if epoch >= 4:
            return
        x, y = tasks.data()
        value, _ = tasks.loss(np.array(tasks.weights_of(self.model)))
        right = np.argmax(self.model.predict(x, verbose=0), 1) == y
        np.testing.assert_allclose(logs["loss"], value)
        np.testing.assert_allclose(logs["accuracy"], right.mean(), rtol=1e-6)


@pytest.mark.nightly
def test_it_ends_at_the_minimum(strategy):
    model = tasks.make_model(strategy)
    looks = Looks()
    history = fit(model, 200, callbacks=[looks], validation_data=tasks.data())
    assert looks.seen == sorted(looks.seen, reverse=True)
    assert int(model.optimizer.iterations) == len(looks.seen)
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


@pytest.mark.nightly
def test_a_compiled_step_does_the_same(strategy):
    losses = []
    for used in (False, True):
        model = tasks.make_model(strategy)
        model.jit_compile = used
        losses.append(fit(model, 4).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-12)


@pytest.mark.nightly
def test_a_call_that_raises_before_its_first_step_is_none(strategy, tmp_path):
    """Of the others' calls, its next one is the one that it was to be."""
    model, numbers = tasks.make_model(strategy, line_search="armijo"), []
    first = strategy._training._number + 1

    def busy(logs):
        raise OSError("a file is busy")

    raises = keras.callbacks.LambdaCallback(on_train_begin=busy)
    for callbacks in ([raises], [], [raises], []):
        if callbacks:
            with pytest.raises(OSError, match="busy"):
                fit(model, 1, callbacks=callbacks)
        else:
            fit(model, 1)
        numbers.append(strategy._training._number - first)
    # Without epochs it has no step to take.
    fit(model, 0)
    fit(model, 1)
    numbers.append(strategy._training._number - first)
    # One that is resumed at its end has none, either.
    for epochs in (2, 2, 1):
        backup = keras.callbacks.BackupAndRestore(
            tmp_path, delete_checkpoint=False
        )
        fit(model, epochs, callbacks=[backup])
        numbers.append(strategy._training._number - first)
    assert numbers == [0, 0, 1, 1, 3, 4, 5, 6]


@pytest.mark.nightly
def test_training_goes_on_where_it_has_ended(strategy, tmp_path):
    """In a second `fit`, and in one of a saved model with its memory."""

    def make():
        return tasks.make_model(strategy, memory=3, line_search="armijo")

    def losses(model, epochs):
        return fit(model, epochs).history["loss"]

    expected = losses(make(), 7)
    parts = make()
    assert losses(parts, 3) == expected[:3]
    parts.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == parts.optimizer.get_config()
    assert losses(parts, 4) == losses(loaded, 4) == expected[3:]
    for model in (parts, loaded):
        assert int(model.optimizer.iterations) == 7
    # Weights that a user sets are where the next one begins.
    parts.set_weights([np.zeros_like(w) for w in parts.get_weights()])
    assert losses(parts, 3) == expected[:3]


@pytest.mark.nightly
def test_it_goes_on_with_weights_of_different_precision(strategy, tmp_path):
    model = small_model(
        strategy,
        keras.layers.Dense(3, "tanh", dtype="float32"),
        keras.layers.Dense(1, dtype="float64"),
        optimizer=tfdist.sandblaster.LBFGS(
            line_search=tfdist.sandblaster.FixedStep(0.5)
        ),
    )
    fit(model, 3)
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    losses = []
    for one in (model, loaded):
        losses.append(fit(one, 1).history["loss"])
        # Without pairs, it is divided by the length of the gradient.
        assert strategy.iterations[-1]["step"] == 0.5
    np.testing.assert_allclose(*losses, rtol=1e-6)


def change_loss(strategy, model):
    with strategy.scope():
        model.compile(tfdist.sandblaster.LBFGS(), loss="mae")


def change_frozen_weights(strategy, model):
    layer = model.layers[0]
    layer.set_weights([2 * weights for weights in layer.get_weights()])


@pytest.mark.nightly
@pytest.mark.parametrize("change", [change_loss, change_frozen_weights])
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


def test_gradients_of_placed_layers_are_put_together_here(strategy):
    model = small_model(
        strategy, keras.layers.Dense(2, name="far"), keras.layers.Dense(1)
    )
    tfdist.placement.place(model, {"far": "CPU:1"})
    batch = tuple(map(tf.constant, tasks.data()))
    made = portion_gradients.PortionGradients(strategy, model, [batch])
    step = tf.function(made._own_step, autograph=False)
    operations = step.get_concrete_function(batch).graph.get_operations()
    # Else all would travel to the largest one, and then here.
    (together,) = [
        one.device
        for one in operations
        if one.type == "ConcatV2" and one.outputs[0].shape == [made.number]
    ]
    assert together == made.values().device


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


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly
@pytest.mark.parametrize("metrics", [[], ["mae"]])
def test_the_log_of_a_train_step_without_metrics_is_the_loss(strategy, metrics):
    logs = fit(own_step(strategy, metrics), 2).history
    values = [one["value"] for one in strategy.iterations[-2:]]
    # Keras's metrics are less exact.
    assert logs == {"loss": pytest.approx(values, rel=1e-6)}


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


class Stops(keras.Model):
    """A model whose training stops after some more batches if it is told to.

    Attributes:
        left: their number; None for no end.
    """

    left = None

    def train_step(self, data):
        """As Keras's."""
        if self.left == 0:
            raise KeyboardInterrupt
        if self.left is not None:
            self.left -= 1
        return super().train_step(data)


# The first batch is computed twice, then five at the point where `fit` begins;
# after these, the model has a point that the iteration tries.
@pytest.mark.nightly
@pytest.mark.parametrize("left", [10, 0])
def test_a_fit_that_is_stopped_keeps_weights_and_memory(
    strategy, tmp_path, left
):
    whole, parts = (tasks.make_model(strategy, Stops) for _ in range(2))
    expected = fit(whole, 5).history["loss"][3:]
    parts.run_eagerly = True
    fit(parts, 3)
    weights = tasks.weights_of(parts)
    parts.left = left
    with pytest.raises(KeyboardInterrupt):
        fit(parts, 2)
    parts.left = None
    assert tasks.weights_of(parts) == weights
    parts.save(tmp_path / "model.keras")
    assert tasks.weights_of(parts) == weights
    with strategy.scope():
        loaded = keras.models.load_model(
            tmp_path / "model.keras", custom_objects={"Stops": Stops}
        )
    for model in (parts, loaded):
        losses = fit(model, 2).history["loss"]
        np.testing.assert_allclose(losses, expected, rtol=1e-12)


@pytest.mark.nightly
def test_saving_keeps_weights_that_were_set_after_a_stopped_fit(
    strategy, tmp_path
):
    model = tasks.make_model(strategy, Stops)
    model.run_eagerly = True
    model.left = 15
    with pytest.raises(KeyboardInterrupt):
        fit(model, 9)
    weights = [np.full_like(one, 0.5) for one in model.get_weights()]
    model.set_weights(weights)
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    other = tasks.make_model(strategy, Stops)
    other.load_weights(path)
    for one in (model, other):
        assert set(tasks.weights_of(one)) == {0.5}


@pytest.mark.nightly
def test_weights_set_by_callbacks_outlive_the_loss_of_a_server(strategy):
    """A server is lost when the chief waits for the others at the end."""
    model = tasks.make_model(strategy)

    class SetsAtEnd(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            self.model.set_weights(
                [np.full_like(one, 0.5) for one in self.model.get_weights()]
            )
            # As what talks to servers does when some are there again.
            strategy._training._put_back()

    fit(model, 2, callbacks=[SetsAtEnd()])
    assert set(tasks.weights_of(model)) == {0.5}


def test_a_worker_that_begins_waits_for_what_the_chief_puts_back():
    """Else it reads a record that the first server has lost."""
    one = object.__new__(minimizing_fit.MinimizingFit)
    one._training = mock.Mock()
    one._coordinator = one._worker = None
    one.put_back()
    assert not one._training.await_coordinator.called
    one._worker = mock.Mock()
    one.put_back()
    assert one._training.await_coordinator.called


@pytest.mark.nightly
@pytest.mark.parametrize("exits", [False, True])
def test_a_chief_that_takes_note_of_a_notice_ends_its_fit(
    strategy, monkeypatch, exits
):
    """The others end with it; one that exits comes back, and goes on."""
    monkeypatch.setattr(preemption, "received", lambda: True)
    monkeypatch.setattr(preemption._settings, "exits", exits)
    fit(tasks.make_model(strategy), 1)
    assert strategy._training.board.read()["ended"] is not exits


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


def test_weights_that_were_set_are_the_last_ones_after_another_attempt():
    """A server is lost in the wait; iterations give the model their own."""
    found, last = {"model": np.full(2, 0.5)}, []

    def over_losses(function):
        try:
            return function()
        except tf.errors.UnavailableError:
            one._coordinator.parameters = np.full(2, 0.5)
            return function()

    def iterate(number):
        if last:
            found["model"] = one._coordinator.parameters = np.ones(2)

    one = object.__new__(minimizing_fit.MinimizingFit)
    one._seen, one._number = 3, 0
    one._gradients = mock.Mock(
        values=lambda: found["model"],
        assign=lambda values: found.update(model=values),
    )
    one._coordinator = mock.Mock(
        parameters=np.ones(2), iterate=iterate, set_last=last.append
    )
    one._training = mock.Mock(over_losses=over_losses)
    lost = tf.errors.UnavailableError(None, None, "a server")
    one._training.followers.wait.side_effect = [lost, None]
    one._end()
    assert [values.tolist() for values in last] == [[0.5, 0.5]] * 2
    assert found["model"].tolist() == [0.5, 0.5]
