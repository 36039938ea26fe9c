"""SIGTERM while a callback of `fit` is in a loop of its own."""

import signal

import keras
import numpy as np
import pytest

from tfdist.cluster import preemption
from tfdist.runtime.keras_hooks import preemption_exit

X = np.ones([2, 1], np.float32)


class Stops(keras.callbacks.Callback):
    """Gets SIGTERM in the first batch, and is told before the loop is left."""

    told = 0

    def on_preemption(self):
        self.told += 1

    def _stop(self, batch, logs=None):
        signal.raise_signal(signal.SIGTERM)

    on_train_batch_begin = on_test_batch_begin = _stop


class Within(keras.callbacks.Callback):
    """Calls the model at the end of an epoch."""

    def __init__(self, call):
        super().__init__()
        self._call = call

    def on_epoch_end(self, epoch, logs=None):
        self._call(self.model)


class Saves(keras.callbacks.Callback):
    """Notes when it would save."""

    def __init__(self):
        super().__init__()
        self.saved = []

    def on_preemption(self):
        self.saved.append("before the exit")

    def on_train_end(self, logs=None):
        self.saved.append("at the end")


@pytest.fixture(autouse=True)
def notices():
    """Takes SIGTERM for a notice during a test."""
    before = signal.signal(
        signal.SIGTERM,
        lambda number, frame: preemption_exit.stop_loops(frame),
    )
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "call",
    [
        lambda model, stops: model.evaluate(X, X, 2, 0, callbacks=[stops]),
        lambda model, stops: model.fit(X, X, 2, verbose=0, callbacks=[stops]),
    ],
)
def test_callbacks_of_fit_save_also_when_one_of_them_evaluates_or_fits(
    call, monkeypatch
):
    monkeypatch.setattr(preemption._settings, "is_leaving", False)
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    stops, saves = Stops(), Saves()
    callbacks = [Within(lambda model: call(model, stops)), saves]
    with pytest.raises(SystemExit) as left:
        model.fit(X, X, verbose=0, callbacks=callbacks)
    assert left.value.code == 143
    assert saves.saved == ["before the exit"]
    assert stops.told == 1
