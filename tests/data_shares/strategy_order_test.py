"""Data sets before the strategy are warned of in one process, too."""

import keras
import pytest
import tensorflow as tf

import tfdist
from tfdist.data_shares import strategy_order

PAIRS = tf.ones([4, 1]), tf.ones([4, 1])


@pytest.fixture
def anew(monkeypatch):
    """As in a process that has made no strategy yet."""
    monkeypatch.setattr(strategy_order._Noted, "number", None)
    monkeypatch.setattr(strategy_order._Noted, "has_warned", False)


class _Stop(keras.callbacks.Callback):
    """Ends `fit` when it has its data, before a step is traced."""

    def on_train_begin(self, logs=None):
        raise KeyboardInterrupt


def fit(data):
    with tfdist.AsyncStrategy().scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(KeyboardInterrupt):
        model.fit(data, verbose=0, callbacks=[_Stop()])


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_data_set_before_the_strategy_is_warned_of_once(
    anew, caplog, is_changed
):
    data = tf.data.Dataset.from_tensors(PAIRS)
    tfdist.AsyncStrategy()
    if is_changed:
        data = data.repeat(2)
    for _ in range(2):
        fit(data)
    assert caplog.text.count("made before the strategy") == 1


def test_a_data_set_after_the_strategy_is_right(anew, caplog):
    tfdist.AsyncStrategy()
    fit(tf.data.Dataset.from_tensors(PAIRS))
    assert "before the strategy" not in caplog.text
