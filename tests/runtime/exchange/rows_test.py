"""Of a large table only the rows that changed are pulled."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.strategies import twins
import tfdist

ROWS, WIDTH = 20_000, 8
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
}


def _model(optimizer):
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(ROWS, WIDTH),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    model.compile(OPTIMIZERS[optimizer](), "mse")
    return model


def _data():
    random = np.random.default_rng(1)
    # Rows that come again, within a batch and in later ones.
    x = random.choice([0, 1, 2, 77, ROWS - 1], (24, 4))
    return x, random.normal(size=(24, 2)).astype("float32")


def _train(optimizer, scope):
    keras.utils.set_random_seed(2)
    with scope:
        model = _model(optimizer)
    x, y = _data()
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    return model, [history.history["loss"], model.get_weights()]


@pytest.mark.parametrize(
    "optimizer", nightly.also(["adam"], ["sgd", "adagrad"])
)
def test_trains_as_without_a_strategy(optimizer):
    strategy = tfdist.AsyncStrategy()
    _, found = _train(optimizer, strategy.scope())
    _, expected = _train(optimizer, contextlib.nullcontext())
    twins.assert_same(found, expected)
    if optimizer == "adam":
        # Momentum moves all rows, so all travel.
        for exchange in strategy.journal.read_new():
            assert exchange.bytes_received > ROWS * WIDTH * 4


@pytest.mark.nightly
def test_rows_travel_where_the_rule_leaves_the_others_alone():
    strategy = tfdist.AsyncStrategy()
    model, _ = _train("sgd", strategy.scope())
    table_bytes = ROWS * WIDTH * 4
    for exchange in strategy.journal.read_new():
        assert exchange.bytes_received < table_bytes / 100
    # A table that is set on the server is pulled as a whole.
    table = model.variables[0].value
    table.assign(tf.ones([ROWS, WIDTH]))
    # As another worker would have it, that has not heard of the assignment.
    table.assign_replica(tf.zeros([ROWS, WIDTH]))
    x, y = _data()
    model.fit(x, y, batch_size=8, verbose=0)
    untouched = np.setdiff1d(np.arange(ROWS), x)
    found = tf.gather(tf.convert_to_tensor(table), untouched)
    np.testing.assert_array_equal(found, np.ones([len(untouched), WIDTH]))


def _pulled(model):
    """Untouched rows after a step of a worker that has heard of nothing."""
    table = model.variables[0].value
    table.assign_replica(tf.zeros([ROWS, WIDTH]))
    x, y = _data()
    model.fit(x, y, batch_size=24, verbose=0)
    untouched = np.setdiff1d(np.arange(ROWS), x)
    found = tf.gather(tf.convert_to_tensor(table), untouched).numpy()
    return np.unique(found).tolist()


@pytest.mark.nightly
def test_tables_that_are_set_travel_whole_however_early_they_are():
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = _model("sgd")
    model.evaluate(*_data(), verbose=0)
    for number in (1.0, 7.0):
        model.variables[0].assign(tf.fill([ROWS, WIDTH], number))
        assert _pulled(model) == [number]


@pytest.mark.nightly
def test_tables_travel_whole_when_another_optimizer_changed_all_rows():
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = _model("sgd")
    x, y = _data()
    model.fit(x, y, batch_size=24, verbose=0)
    model.variables[0].assign(tf.fill([ROWS, WIDTH], 7.0))
    model.fit(x, y, batch_size=24, verbose=0)
    for optimizer in ("adam", "sgd"):
        with strategy.scope():
            model.compile(OPTIMIZERS[optimizer](), "mse")
        if optimizer == "adam":
            model.fit(x, y, batch_size=24, verbose=0)
    assert _pulled(model) == [7.0]
