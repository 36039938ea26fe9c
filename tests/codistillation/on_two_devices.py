"""Trains with one device, and with two replicas; prints what came of it."""

import contextlib
import json

import keras
import numpy as np
import tensorflow as tf

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


def main():
    """Prints a line of JSON."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    print(json.dumps([train(None), train(two)]))


if __name__ == "__main__":
    main()
