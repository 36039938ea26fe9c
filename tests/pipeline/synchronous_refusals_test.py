"""Losses, layers and data that a synchronous pipeline refuses."""

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

from tests.pipeline import models
from tests.pipeline.steps import compiled
from tests.pipeline.steps import executor
from tests.pipeline.steps import small
from tests.pipeline.steps import tensors
from tfdist.pipeline import schedules

SCHEDULES = schedules.SYNCHRONOUS


def refused(message, model, loss="mse", schedule="1f1b", data=None, **options):
    compiled(model, loss)
    with pytest.raises(ValueError, match=message):
        pipelined = executor(
            model, options.pop("stages", 2), schedule, 2, **options
        )
        pipelined.train_step(tensors(data or models.data("skip", 4)))


def test_losses_of_which_micro_batches_say_too_little_are_refused():
    mean = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    refused("'mean_with_sample_weight'", small(layers.Dense(4)), mean)
    scalar = lambda y, y_pred: tf.reduce_sum((y - y_pred) ** 2)  # noqa: E731
    refused("one number", small(layers.Dense(4)), scalar)

    class OwnLoss(keras.Sequential):
        def compute_loss(self, x, y, y_pred, sample_weight):
            return tf.reduce_sum(y_pred)

    own = OwnLoss(small(layers.Dense(4)).layers)
    own.build((None, 4))
    refused("compute_loss", own)
    two = models.make("two")
    losses = {
        "early": "mse",
        "late": keras.losses.SparseCategoricalCrossentropy(reduction="sum"),
    }
    refused("same reduction", two, losses, stages=["j"])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_layers_that_know_of_micro_batches_are_refused(schedule):
    active = layers.Dense(4, activity_regularizer="l2")
    refused("activity_regularizer", small(active), schedule=schedule)
    masked = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            layers.Embedding(5, 3, mask_zero=True),
            layers.LSTM(3),
        ]
    )
    tokens = np.ones((4, 4), "int32"), np.ones((4, 3), "float32")
    refused("mask", masked, schedule=schedule, data=tokens)
    x = keras.Input((4,))
    dropout = layers.Dropout(0.5)
    y = layers.Dense(4, name="middle")(dropout(x))
    shared = keras.Model(x, layers.Dense(3)(dropout(y)))
    refused(
        "stages 0 and 1 share", shared, schedule=schedule, stages=["middle"]
    )


class Noise(layers.Layer):
    def call(self, inputs):
        return inputs + keras.random.normal(keras.ops.shape(inputs))


def test_random_numbers_that_would_repeat_are_refused():
    refused("SeedGenerator", small(Noise()))


def test_numbers_of_examples_must_be_the_same():
    x, y, _ = models.data("skip", 4)
    refused("same number", small(Noise()), data=(x, y[:3]))
