"""Keras's own callbacks do under a strategy what they do without one."""

import keras
import numpy as np
import pytest

from tests.strategies.twins import assert_same
from tests.strategies.twins import assert_trains_the_same
from tests.strategies.twins import classification
from tests.strategies.twins import compiled
from tests.strategies.twins import perceptron
from tests.strategies.twins import traces
import tfdist

X, Y = classification()


def _fit(model, callbacks, epochs=4, **arguments):
    history = model.fit(
        X,
        Y,
        batch_size=6,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
        validation_data=(X, Y),
        **arguments,
    )
    return history.history


class Shrink(keras.callbacks.Callback):
    """Changes weights before each epoch, and the rate before the first."""

    def on_epoch_begin(self, epoch, logs=None):
        kernel = self.model.layers[0].kernel
        kernel.assign(0.9 * kernel)
        if not epoch:
            self.model.optimizer.learning_rate = 0.1


@pytest.mark.nightly
def test_callbacks_that_change_save_and_stop_do_it_together(tmp_path):
    def train(scope):
        with scope():
            model = compiled(perceptron(), "adam")
        seen = []

        class Recorder(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                seen.append(self.model.get_weights())

        # The first epoch counts as the best, no other one is better by 10.
        settings = {"monitor": "val_loss", "min_delta": 10.0}
        stopping = keras.callbacks.EarlyStopping(
            patience=2, restore_best_weights=True, **settings
        )
        plateau = keras.callbacks.ReduceLROnPlateau(
            factor=0.5, patience=1, **settings
        )
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        saving = keras.callbacks.ModelCheckpoint(
            directory / "{epoch}.weights.h5", save_weights_only=True
        )
        callbacks = [Shrink(), Recorder(), plateau, saving, stopping]
        history = _fit(model, callbacks)
        assert len(seen) == 3 and stopping.stopped_epoch == 2
        assert_same(model.get_weights(), seen[0])
        evaluated = model.evaluate(X, Y, verbose=0)
        names = [f"{epoch}.weights.h5" for epoch in (1, 2, 3)]
        assert sorted(p.name for p in directory.iterdir()) == names
        plain = compiled(perceptron(), "adam")
        plain.load_weights(directory / names[-1])
        assert_same(plain.get_weights(), seen[-1])
        # The servers hold the restored weights too: training goes on there.
        more = _fit(model, [], epochs=1)
        return history, seen, evaluated, more, traces(model)

    history, seen, *_ = assert_trains_the_same(train)
    np.testing.assert_allclose(history["learning_rate"], [0.1, 0.1, 0.05])
    assert np.max(np.abs(seen[0][0] - seen[1][0])) > 1e-3


@pytest.mark.nightly
def test_swapped_averages():
    def train(scope):
        averaged = {"use_ema": True, "ema_momentum": 0.6}
        with scope():
            model = compiled(
                perceptron(), keras.optimizers.SGD(0.3, **averaged)
            )
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        history = _fit(model, [swap])
        return history, traces(model), model.evaluate(X, Y, verbose=0)

    assert_trains_the_same(train)


def test_terminate_on_nan():
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = compiled(perceptron(), keras.optimizers.SGD(1e38))
    history = _fit(model, [keras.callbacks.TerminateOnNaN()])
    assert len(history["loss"]) == 1
