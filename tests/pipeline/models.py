"""Models of the kinds that pipelines have to get right, with their data."""

import dataclasses
from typing import Any

import keras
from keras import layers
import numpy as np


@dataclasses.dataclass(frozen=True)
class Kind:
    """A model and how it is cut and trained.

    Attributes:
      build: Makes a new model.
      stages: Where it is cut, into three stages.
      loss: As in `compile`.
      data: A function of (generator, number of examples) to (x, y).
    """

    build: Any
    stages: Any
    loss: Any
    data: Any


def _mlp():
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(5, "tanh", kernel_regularizer="l2", name="a"),
            layers.Dense(6, "tanh", bias_regularizer="l1", name="b"),
            layers.Dense(3, "softmax", name="c"),
        ]
    )


def _convnet():
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(3, 3, activation="tanh", name="a"),
            layers.MaxPooling2D(name="b"),
            layers.Conv2D(2, 2, activation="tanh", name="c"),
            layers.Flatten(name="d"),
            layers.Dense(3, "tanh", kernel_regularizer="l2", name="e"),
        ]
    )


def _skip():
    """The input and a tensor of the first stage go straight to the last."""
    x = keras.Input((4,))
    a = layers.Dense(5, "tanh", name="a")(x)
    b = layers.Dense(5, "tanh", name="b")(a)
    c = layers.Dense(5, "tanh", name="c")(b) + a
    c = layers.Concatenate(name="join")([c, x])
    return keras.Model(x, layers.Dense(3, name="d")(c))


def _tied():
    """A layer that two stages call, and one whose gradient is sparse."""
    x = keras.Input((3,), dtype="int32")
    shared = layers.Dense(4, "tanh", kernel_regularizer="l2", name="shared")
    a = layers.Embedding(7, 4, name="a")(x)
    a = layers.Flatten(name="flat")(shared(a))
    b = layers.Dense(4, "tanh", name="b")(a)
    return keras.Model(x, layers.Dense(3, name="c")(shared(b)))


def _two():
    """Two inputs and two outputs, of and from different stages."""
    p, q = keras.Input((4,), name="p"), keras.Input((2,), name="q")
    a = layers.Dense(5, "tanh", name="a")(p)
    early = layers.Dense(2, name="early")(a)
    b = layers.Dense(5, "tanh", name="b")(layers.Concatenate(name="j")([a, q]))
    late = layers.Dense(3, "softmax", name="late")(b)
    return keras.Model({"p": p, "q": q}, {"early": early, "late": late})


def _floats(*shape):
    return lambda rng, n: rng.standard_normal((n, *shape))


def _labels(rng, n):
    return rng.integers(0, 3, n)


def _pairs(x, y):
    return lambda rng, n: (x(rng, n), y(rng, n))


KINDS = {
    "mlp": Kind(
        _mlp,
        ["b", "c"],
        "sparse_categorical_crossentropy",
        _pairs(_floats(4), _labels),
    ),
    "convnet": Kind(
        # The stage in the middle has no weights.
        _convnet,
        ["b", "c"],
        "mse",
        _pairs(_floats(6, 6, 2), _floats(3)),
    ),
    "skip": Kind(_skip, ["b", "c"], "mae", _pairs(_floats(4), _floats(3))),
    "tied": Kind(
        _tied,
        ["flat", "c"],
        "mse",
        _pairs(lambda rng, n: rng.integers(0, 7, (n, 3)), _floats(3)),
    ),
    "two": Kind(
        _two,
        ["j", "late"],
        {"early": "mse", "late": "sparse_categorical_crossentropy"},
        _pairs(
            lambda rng, n: {
                "p": rng.standard_normal((n, 4)),
                "q": rng.standard_normal((n, 2)),
            },
            lambda rng, n: {
                "early": rng.standard_normal((n, 2)),
                "late": rng.integers(0, 3, n),
            },
        ),
    ),
}


def make(kind, seed=1):
    """A model of a kind, the same for the same seed."""
    keras.utils.set_random_seed(seed)
    return KINDS[kind].build()


def data(kind, examples, seed=0):
    """(x, y) as NumPy arrays, and a weight for each example."""
    rng = np.random.default_rng(seed)
    x, y = KINDS[kind].data(rng, examples)
    return x, y, rng.uniform(0.2, 2.0, examples)
