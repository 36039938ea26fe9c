r"""A model and data of one's own, for the simulator.

    tfdist advise --model=examples/own_model.py:build \
        --data=examples/own_model.py:load --num_workers=2,4,8
    tfdist compare --model=examples/own_model.py:build \
        --data=examples/own_model.py:load --num_workers=4,16

Neither function takes arguments. Copy this file and put your own in.
"""

import keras
import numpy as np

import tfdist

PIXELS = 8 * 8


def build() -> keras.Model:
    """Builds and compiles the model."""
    model = keras.Sequential(
        [
            keras.Input((PIXELS,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.2),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def load() -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Loads all examples into memory.

    Returns:
        `(x, y)` for training and `(x, y)` for validation: images as
        `(examples, 64) float32` of 0 to 1, labels as `(examples,) int64`.
    """
    splits = []
    for split in tfdist.datasets.load("digits", split=["train", "test"]):
        images, labels = zip(*split.as_numpy_iterator(), strict=True)
        x = np.stack(images).reshape(-1, PIXELS).astype("float32")
        splits.append((x / tfdist.datasets.MAX_PIXEL["digits"], labels))
    return tuple((x, np.array(y)) for x, y in splits)
