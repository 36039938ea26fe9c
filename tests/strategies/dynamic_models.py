"""Small models with a dynamic table, and their examples."""

import keras
import numpy as np

from tests.runtime.variables.hashing_test import splitmix
import tfdist
from tfdist.layers import DynamicEmbedding

WIDTH, EXAMPLES, IDS = 4, 24, 5
TABLE_BYTES = 4096

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05),
}


def strategy_with_tables():
    """A strategy in one process, with tables."""
    return tfdist.AsyncStrategy(table_bytes=TABLE_BYTES)


def examples():
    """Numbers of ids (24, 5), some several times, and targets (24, 1)."""
    random = np.random.default_rng(0)
    x = random.integers(0, 40, (EXAMPLES, IDS))
    x[:, 1] = x[:, 0]
    return x, random.normal(size=(EXAMPLES, 1)).astype("float32")


def ids_of(numbers):
    """An id for each number, anywhere in int64."""
    return splitmix(np.asarray(numbers)).view(np.int64)


def build(strategy, optimizer, table, dtype="int64"):
    """A compiled model that looks a table up twice."""
    keras.utils.set_random_seed(5)
    with strategy.scope():
        inputs = keras.Input((IDS,), dtype=dtype)
        rows = keras.layers.Flatten()(table(inputs))
        more = keras.layers.GlobalAveragePooling1D()(table(inputs[:, 1:]))
        hidden = keras.layers.Concatenate()([rows, more])
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile(OPTIMIZERS[optimizer](), "mse")
    return model


def dynamic(strategy, optimizer="adagrad", dtype="int64", **settings):
    """A model with a dynamic table, and the table."""
    settings = {"capacity": 100, "name": "items", **settings}
    with strategy.scope():
        table = DynamicEmbedding(WIDTH, **settings)
    return build(strategy, optimizer, table, dtype), table


def fit(model, x, epochs=2, **arguments):
    """Trains on ids; returns losses."""
    _, y = examples()
    arguments = {"batch_size": 8, "shuffle": False, "verbose": 0, **arguments}
    return model.fit(x, y, epochs=epochs, **arguments).history["loss"]


class Within(keras.Model):
    """A model that makes its table when it is first called."""

    def __init__(self):
        super().__init__()
        self.table = DynamicEmbedding(WIDTH, 100)
        self.head = keras.layers.Dense(1)

    def call(self, ids):
        """Returns `(batch, 1)`."""
        return self.head(keras.ops.mean(self.table(ids), 1))
