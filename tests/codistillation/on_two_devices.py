"""Training with one device, and with two replicas."""

import contextlib

import keras
import numpy as np

from tfdist.codistillation import Codistilled
from tfdist.codistillation.teacher import Teacher
from tfdist.codistillation.weights import snapshot

FEATURES, CLASSES, EXAMPLES = 5, 3, 16


def linear(seed):
    """A model that begins as `seed` says."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def train(strategy):
    """Trains one student for two steps; returns all that can be seen."""
    stream = np.random.default_rng(0)
    x = stream.standard_normal((EXAMPLES, FEATURES)).astype("float32")
    y = stream.integers(0, CLASSES, EXAMPLES)
    with strategy.scope() if strategy else contextlib.nullcontext():
        student = linear(1)
        model = Codistilled(student, burn_in_steps=0)
        model.compile(
            "sgd",
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
    teacher = Teacher(student)
    teacher.install(snapshot(linear(2)))
    model.set_teachers([teacher])
    history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return {
        "logs": {k: float(v[-1]) for k, v in history.history.items()},
        "evaluated": model.evaluate(x, y, verbose=0),
        "weights": [array.tolist() for array in snapshot(student)],
    }
