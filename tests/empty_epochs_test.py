"""Epochs in which this worker has no data, and Keras's callbacks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
import tfdist
from tfdist import empty_epochs
from tfdist import guarded_steps


class _Epochs(keras.callbacks.Callback):
    """The logs of each epoch."""

    def __init__(self):
        super().__init__()
        self.logs = []

    def on_epoch_end(self, epoch, logs=None):
        self.logs.append(dict(logs))


class _Trains(keras.callbacks.Callback):
    """Trains another batch at the end of each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        one = np.ones([1, 1], np.float32)
        self.model.train_on_batch(one, one, return_dict=True)


@pytest.mark.parametrize(
    "others", nightly.also([[]], [[_Trains()]]), ids=["", "trains"]
)
@pytest.mark.parametrize("empty", nightly.also([{0}], [{1, 2}]))
def test_callbacks_get_no_metrics_of_an_epoch_without_a_step(
    tmp_path, empty, others
):
    """A loss of 0 would be the best one for ever."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    x = np.ones([4, 1], np.float32)
    # Its metrics are built, as those of a model in a strategy's scope.
    model.evaluate(x, x, verbose=0)
    epochs, away = _Epochs(), []
    made = empty_epochs.EmptyEpochs(lambda: away.append(len(epochs.logs)))

    def call(function, *args):
        of_fit = not guarded_steps.is_of_batch(args)
        if of_fit and len(epochs.logs) in empty:
            raise StopIteration
        return function(*args)

    guarded_steps.guard(
        model, lambda function, *args: made.call(call, function, *args)
    )
    stopping = keras.callbacks.EarlyStopping("loss", patience=1)
    path = tmp_path / "best.weights.h5"
    saving = keras.callbacks.ModelCheckpoint(
        path, "loss", save_best_only=True, save_weights_only=True
    )
    plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=1)
    model.fit(
        x,
        x,
        batch_size=2,
        epochs=5,
        verbose=0,
        validation_data=(x, x),
        callbacks=[epochs, stopping, saving, plateau, *others],
    )
    assert away == sorted(empty)
    validated = {"val_loss", "val_mae"}
    for epoch, logs in enumerate(epochs.logs):
        trained = set() if epoch in empty else {"loss", "mae"}
        assert logs.keys() - {"learning_rate"} == trained | validated
    # The loss falls in each epoch that has one.
    losses = [logs["loss"] for logs in epochs.logs if "loss" in logs]
    assert losses == sorted(losses, reverse=True)
    assert len(epochs.logs) == 5
    assert stopping.best == saving.best == plateau.best == losses[-1]


@pytest.mark.nightly
def test_without_servers_an_epoch_without_data_has_no_metrics_either():
    with tfdist.AllReduceStrategy().scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.ones([4, 1], np.float32)
    left = [(x, x)] * 2
    spec = tf.TensorSpec(x.shape)
    data = tf.data.Dataset.from_generator(
        lambda: iter([left.pop() for _ in range(len(left))]),
        output_signature=(spec, spec),
    )
    epochs = _Epochs()
    model.fit(data, epochs=3, verbose=0, callbacks=[epochs])
    assert ["loss" in logs for logs in epochs.logs] == [True, False, False]
