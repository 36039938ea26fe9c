"""Keras's own callbacks do under a strategy what they do without one."""

import keras
import numpy as np
import pytest

from tests import nightly
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


def _assert_fits_the_same(make_callbacks, optimizer="sgd", after=None):
    """`after(model)` says what else is to be compared."""

    def train(scope):
        with scope():
            model = compiled(perceptron(), _new(optimizer))
        history = _fit(model, make_callbacks())
        more = after(model) if after else 0
        return history, traces(model), more

    return assert_trains_the_same(train)


def _new(optimizer):
    if isinstance(optimizer, str):
        return optimizer
    return optimizer.from_config(optimizer.get_config())


@pytest.mark.nightly
def test_learning_rate_scheduler_and_its_log():
    history, _, _ = _assert_fits_the_same(
        lambda: [keras.callbacks.LearningRateScheduler(lambda n: 0.4 / 2**n)]
    )
    np.testing.assert_allclose(history["learning_rate"], [0.4, 0.2, 0.1, 0.05])


def test_reduce_learning_rate_on_plateau():
    history, _, _ = _assert_fits_the_same(
        lambda: [
            keras.callbacks.ReduceLROnPlateau(
                "val_loss", factor=0.5, patience=1, min_delta=10.0
            )
        ]
    )
    # The first epoch is always an improvement, no other one is by 10.
    np.testing.assert_allclose(
        history["learning_rate"], [0.01, 0.01, 0.005, 0.0025]
    )


def test_early_stopping_restores_the_best_weights():
    def train(scope):
        with scope():
            model = compiled(perceptron(), keras.optimizers.SGD(0.1))
        seen = []

        class Recorder(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                seen.append(self.model.get_weights())

        stopping = keras.callbacks.EarlyStopping(
            "val_loss",
            patience=2,
            min_delta=10.0,
            restore_best_weights=True,
        )
        history = _fit(model, [Recorder(), stopping])
        found = model.get_weights()
        # The first epoch counts as the best, two more are tried.
        assert len(seen) == 3 and stopping.stopped_epoch == 2
        assert_same(found, seen[0])
        evaluated = model.evaluate(X, Y, verbose=0)
        # The servers hold the restored weights too: training goes on there.
        return history, evaluated, _fit(model, [], epochs=1), traces(model)

    assert_trains_the_same(train)


@pytest.mark.parametrize("weights_only", nightly.also([True], [False]))
def test_model_checkpoint(tmp_path, weights_only):
    suffix = "weights.h5" if weights_only else "keras"
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = compiled(perceptron(), "adam")
    _fit(
        model,
        [
            keras.callbacks.ModelCheckpoint(
                tmp_path / f"{{epoch}}.{suffix}",
                save_weights_only=weights_only,
                save_freq="epoch",
            )
        ],
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"{epoch}.{suffix}" for epoch in (1, 2, 3, 4)
    ]
    if weights_only:
        plain = compiled(perceptron(), "adam")
        plain.load_weights(tmp_path / f"4.{suffix}")
        assert_same(plain.get_weights(), model.get_weights())
    else:
        plain = keras.models.load_model(tmp_path / f"4.{suffix}")
        assert_same(traces(plain), traces(model))


@pytest.mark.nightly
def test_model_checkpoint_of_the_best(tmp_path):
    path = tmp_path / "best.keras"
    _assert_fits_the_same(
        lambda: [
            keras.callbacks.ModelCheckpoint(
                path, "val_loss", save_best_only=True
            )
        ],
        keras.optimizers.Adam(0.1),
        after=lambda model: keras.models.load_model(path).get_weights(),
    )


class _Interrupt(keras.callbacks.Callback):
    def __init__(self, after_batches):
        super().__init__()
        self._left = after_batches

    def on_train_batch_end(self, batch, logs=None):
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("save_freq", nightly.also(["epoch"], [3]))
def test_backup_and_restore_resumes_as_if_never_interrupted(
    tmp_path, save_freq
):
    """A new process takes up what the interrupted one has left."""

    def model_of(strategy):
        keras.utils.set_random_seed(7)
        with strategy.scope():
            return compiled(perceptron(), "adam")

    def backup(name):
        return keras.callbacks.BackupAndRestore(
            tmp_path / name, save_freq=save_freq
        )

    # Saved after batch 8 (two epochs) or 9; the weights of batch 9 are lost
    # in the first case, so the first has to repeat it.
    whole = model_of(tfdist.AsyncStrategy())
    _fit(whole, [])
    interrupted = model_of(tfdist.AsyncStrategy())
    with pytest.raises(KeyboardInterrupt):
        _fit(interrupted, [backup("backup"), _Interrupt(after_batches=10)])
    resumed = model_of(tfdist.AsyncStrategy())
    resumed.layers[0].bias.assign([9.0, 9.0, 9.0, 9.0])
    history = _fit(resumed, [backup("backup")])
    assert len(history["loss"]) == 2
    if save_freq == "epoch":
        assert_same(traces(resumed), traces(whole))
    else:
        # Keras begins the epoch again with what batch 9 had left of it.
        assert resumed.optimizer.iterations == 9 + 2 * 4


@pytest.mark.nightly
def test_tensor_board_writes_what_it_writes(tmp_path):
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = compiled(perceptron(), "adam")
    board = keras.callbacks.TensorBoard(
        tmp_path, histogram_freq=1, write_graph=True, update_freq="batch"
    )
    _fit(model, [board])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train", "validation"]
    assert list((tmp_path / "train").glob("events*"))


@pytest.mark.parametrize("swap_on_epoch", nightly.also([True], [False]))
def test_swapped_averages(swap_on_epoch):
    _assert_fits_the_same(
        lambda: [keras.callbacks.SwapEMAWeights(swap_on_epoch=swap_on_epoch)],
        keras.optimizers.SGD(0.3, use_ema=True, ema_momentum=0.6),
        after=lambda model: model.evaluate(X, Y, verbose=0),
    )


def test_terminate_on_nan():
    def train(scope):
        with scope():
            model = compiled(perceptron(), keras.optimizers.SGD(1e38))
        history = _fit(model, [keras.callbacks.TerminateOnNaN()])
        return len(history["loss"])

    assert assert_trains_the_same(train) == 1


def test_custom_callback_changes_weights_and_learning_rate():
    class Shrink(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            kernel = self.model.layers[0].kernel
            kernel.assign(0.9 * kernel)
            self.model.optimizer.learning_rate = 0.1 / (epoch + 1)

    _assert_fits_the_same(lambda: [Shrink()], keras.optimizers.Adam(0.1))
