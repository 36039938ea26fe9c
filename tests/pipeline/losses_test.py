"""Losses that can, and that cannot, be computed for each micro-batch."""

import keras
import pytest
import tensorflow as tf

from tfdist.pipeline import losses


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
    for loss in (scalar, keras.losses.Dice()):
        with pytest.raises(ValueError, match="one number"):
            check(loss, y, y)
    with pytest.raises(ValueError, match="one number"):
        check({"a": "mse", "b": scalar}, {"a": y, "b": y}, {"a": y, "b": y})
    with pytest.raises(ValueError, match="same structure"):
        check([scalar, "mse"], [y], [y, y])
