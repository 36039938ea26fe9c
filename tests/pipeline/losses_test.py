"""Losses that can, and that cannot, be computed for each micro-batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tfdist.pipeline import losses
from tfdist.pipeline import pipelined


def model_with(loss):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile("sgd", loss)
    return model


def test_reduction_of_losses():
    mse = keras.losses.MeanSquaredError
    for loss, expected in [
        ("mse", "mean"),
        (mse(), "mean"),
        (mse(reduction="mean"), "mean"),
        (mse(reduction="sum"), "sum"),
        (lambda y, y_pred: abs(y - y_pred), "mean"),
    ]:
        assert losses.reduction_of(model_with(loss)) == expected
    for reduction in (None, "none", "mean_with_sample_weight"):
        with pytest.raises(ValueError, match="cannot be computed from micro"):
            losses.reduction_of(model_with(mse(reduction=reduction)))


def test_losses_that_are_no_loss_per_example_are_refused():
    y = tf.zeros((4, 2))
    scalar = lambda y, y_pred: tf.reduce_sum(y - y_pred)  # noqa: E731
    check = losses.check_per_example
    check("mse", y, y)
    check({"a": "mse", "b": None}, {"a": y, "b": y}, {"a": y, "b": y})
    check(["mse", "mae"], y, y)
    for loss in (scalar, keras.losses.Dice(), ["mse", scalar]):
        with pytest.raises(ValueError, match="one number"):
            check(loss, y, y)
    with pytest.raises(ValueError, match="one number"):
        check({"a": "mse", "b": scalar}, {"a": y, "b": y}, {"a": y, "b": y})
    with pytest.raises(ValueError, match="same structure"):
        check([scalar, "mse"], [y], [y, y])


@pytest.mark.nightly
def test_losses_of_all_examples_together_are_refused():
    y = tf.zeros((4, 2))
    check = losses.check_per_example
    over_axis = lambda y, y_pred: tf.reduce_sum(y - y_pred, axis=0)  # noqa: E731
    flat = lambda y, y_pred: tf.reshape(y - y_pred, [-1])  # noqa: E731
    for loss, size in (
        (over_axis, 2),
        (keras.losses.Dice(axis=(0,)), 2),
        (flat, 8),
    ):
        message = rf"shape \({size},\) for .*\(4, 2\).*Do not flatten"
        with pytest.raises(ValueError, match=message):
            check(loss, y, y)
    with pytest.raises(ValueError, match="with each other"):
        check(keras.losses.Circle(), y[:, 0], y)

    @tf.function(input_signature=[tf.TensorSpec((None, None))] * 2)
    def late(y, y_pred):
        check(over_axis, y, y_pred)

    late(y[:2], y[:2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="Do not flatten"):
        late(y, y)


def test_losses_are_checked_with_the_targets_and_outputs_that_keras_gives():
    seen = []

    def loss(number):
        def values(y, y_pred):
            seen.append((number, int(y[0]), int(y_pred[0])))
            return y

        return values

    one, two = tf.constant([1]), tf.constant([2])
    check = losses.check_per_example
    # Outputs in another order than that of their names.
    check({"b": loss(1), "a": loss(2)}, {"a": two, "b": one}, [one, two], "ba")
    check({"b": loss(1)}, {"b": one}, {"a": two, "b": one}, "ba")
    check({"b": loss(1)}, {"b": one}, one, ["b"])
    check([loss(1), loss(2)], {"a": two, "b": one}, [one, two], "ba")
    assert seen == [(1, 1, 1), (2, 2, 2)] + [(1, 1, 1)] * 3 + [(2, 2, 2)]


@pytest.mark.parametrize(
    "loss",
    [
        keras.losses.Dice(),
        keras.losses.tversky,
        keras.losses.SparseCategoricalCrossentropy(ignore_class=0),
    ],
)
def test_losses_given_unknown_targets_are_refused_if_they_may_be_wrong(loss):
    y = tf.zeros((4, 2))
    losses.check_per_example({"late": "mse"}, y, {"early": y, "late": y})
    with pytest.raises(ValueError, match="may give one number"):
        losses.check_per_example({"late": loss}, y, {"early": y, "late": y})


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("run_eagerly", nightly.also([True], [False]))
def test_losses_of_outputs_shown_of_sums_are_those_of_the_batch(run_eagerly):
    """Eagerly, Keras weights batches with their examples."""
    x = np.arange(7.0)[:, None]
    shown = []
    for piped in (False, True):
        inputs = keras.Input((1,))
        hidden = keras.layers.Dense(
            2, kernel_initializer="ones", kernel_regularizer="l2"
        )(inputs)
        outputs = [
            keras.layers.Dense(1, kernel_initializer="ones", name=name)(hidden)
            for name in "bc"
        ]
        model = keras.Model(inputs, outputs)
        if piped:
            pipelined.pipeline(
                model, ["b"], micro_batches=2, schedule="pipedream_2bw"
            )
        loss = keras.losses.MeanSquaredError(reduction="sum")
        model.compile(
            keras.optimizers.SGD(0.0),
            [loss, loss],
            loss_weights=[1.0, 0.5],
            run_eagerly=run_eagerly or not piped,
        )
        history = model.fit(x, [x, -x], 4, 2, verbose=0, shuffle=False).history
        shown.append(history)
    assert shown[0].keys() == shown[1].keys() == {"loss", "b_loss", "c_loss"}
    for name, expected in shown[0].items():
        assert shown[1][name] == pytest.approx(expected, rel=1e-9), name
