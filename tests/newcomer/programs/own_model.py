"""A model of one's own, for `tfdist advise`, `simulate` and `compare`.

tfdist advise --model=THIS:build --data=THIS:load --num_workers=2,4
"""

import keras
import numpy as np


def build():
    model = keras.Sequential(
        [
            keras.Input([4]),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    return model


def load():
    x = np.random.default_rng(0).normal(size=(1024, 4)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("int32")
    return (x[:768], y[:768]), (x[768:], y[768:])
