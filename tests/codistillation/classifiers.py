"""Small classifiers, data for them, and how tests train them."""

import keras
import numpy as np
import tensorflow as tf

from tfdist.codistillation.teacher import Teacher
from tfdist.codistillation.weights import snapshot

layers = keras.layers
FROM_LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
BATCH, FEATURES, CLASSES = 8, 5, 3


def data(seed=0, batches=1):
    stream = np.random.default_rng(seed)
    x = stream.standard_normal((BATCH * batches, FEATURES)).astype("float32")
    return x, stream.integers(0, CLASSES, len(x))


def linear(seed):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((FEATURES,)), layers.Dense(CLASSES)])


def deep(seed):
    """With all that inference leaves out."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Dense(16, activation="relu"),
            layers.BatchNormalization(momentum=0.5),
            layers.Dropout(0.5),
            layers.Dense(CLASSES),
        ]
    )


def trained(model, optimizer="sgd", loss=FROM_LOGITS, **kwargs):
    model.compile(optimizer, loss, **kwargs)
    return model


def teachers_of(student, *models):
    """Teachers with the weights of `models`."""
    made = [Teacher(student) for _ in models]
    for teacher, model in zip(made, models, strict=True):
        teacher.install(snapshot(model))
    return made


def fit(model, x, y, **kwargs):
    """Trains on all of it once, in order; returns the logs."""
    history = model.fit(
        x, y, batch_size=BATCH, shuffle=False, verbose=0, **kwargs
    )
    return {name: values[-1] for name, values in history.history.items()}


def assert_same(one, other):
    for a, b in zip(snapshot(one), snapshot(other), strict=True):
        np.testing.assert_array_equal(a, b)


class Own(keras.Model):
    """With a step and a loss of its own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(CLASSES)

    def call(self, inputs, training=False):
        return self.dense(inputs)

    def compute_loss(self, inputs, targets, outputs, weights=None):
        return 2 * super().compute_loss(inputs, targets, outputs, weights)

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"own": loss, **self.compute_metrics(x, y, y_pred)}
