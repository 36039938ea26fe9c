"""A small model and data for the flags --model and --data."""

import pathlib

OWN_PY = """\
import keras
import numpy as np


def model():
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(2, activation="softmax")]
    )
    model.compile(
        keras.optimizers.SGD(0.25, momentum=0.5),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def adam():
    changed = model()
    changed.compile("adam", "sparse_categorical_crossentropy")
    return changed


def constrained():
    changed = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(
                2, activation="softmax", kernel_constraint="non_neg"
            ),
        ]
    )
    changed.compile("sgd", "sparse_categorical_crossentropy")
    return changed


def ftrl():
    changed = model()
    changed.compile("ftrl", "sparse_categorical_crossentropy")
    return changed


def scheduled():
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    changed = model()
    changed.compile(
        keras.optimizers.SGD(rate), "sparse_categorical_crossentropy"
    )
    return changed


def rate_function():
    changed = model()
    changed.compile(
        keras.optimizers.SGD(lambda: 0.1), "sparse_categorical_crossentropy"
    )
    return changed


def several_optimizers():
    changed = model()
    one = keras.optimizers.SGD(0.1)
    changed.compile(
        keras.optimizers.MultiOptimizer(lambda _: one),
        "sparse_categorical_crossentropy",
    )
    return changed


ALWAYS = model()


def always_one():
    return ALWAYS


def not_compiled():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def examples(number=80):
    x = np.random.default_rng(0).standard_normal((number, 3))
    return x.astype("float32"), (x[:, 0] > 0).astype("int64")


def pair():
    return examples(64), examples(20)


def dataset():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(examples())


def five_wide():
    x, y = examples()
    return np.concatenate([x, x[:, :2]], axis=1), y


def one_hot():
    x, y = examples()
    return x, np.eye(2)[y]


def own_layer():
    class Layer(keras.layers.Layer):
        def call(self, x, training=None):
            if training is False:  # When it is evaluated.
                raise ValueError("a layer of mine")
            return x

    changed = keras.Sequential([*model().layers, Layer()])
    changed.build((None, 3))
    changed.compile("sgd", "sparse_categorical_crossentropy")
    return changed


def few():
    return examples(5)


def uneven():
    x, y = examples()
    return x, y[:7]


def nothing():
    return None


NUMBER = 3
"""


def write(directory: pathlib.Path) -> pathlib.Path:
    """Writes the module and returns its path."""
    path = directory / "own.py"
    path.write_text(OWN_PY)
    return path
