"""What the workers of clusters under test run: the ends of calls of `fit`."""

import os

import keras

from tests.multi_process import handshake
from tests.sandblaster import tasks
from tests.sandblaster.tasks import fit
import tfdist


class StopsAfter(keras.callbacks.Callback):
    """Stops training after some epochs."""

    def __init__(self, epochs):
        super().__init__()
        self._epochs = epochs

    def on_epoch_end(self, epoch, logs=None):
        """Stops if they are made."""
        if epoch + 1 == self._epochs:
            self.model.stop_training = True


def make(kind=keras.Model, **tolerance):
    """A strategy and its model, which no tolerance stops."""
    keras.config.set_floatx("float64")
    strategy = tfdist.SandblasterStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0, **tolerance),
        seed=1,
    )
    model = tasks.make_model(
        strategy, kind, gradient_tolerance=0.0, value_tolerance=0.0
    )
    return strategy, model


def stop_on_one(worker, after, epochs):
    """Two calls of `fit`; a callback of one worker ends the first early.

    Args:
        worker: number of the worker.
        after: the epochs that it makes.
        epochs: those of each call.
    """
    strategy, model = make()
    callbacks = []
    if strategy.cluster.worker_id == worker:
        callbacks.append(StopsAfter(after))
    found = []
    for own in (callbacks, []):
        losses = fit(model, epochs, callbacks=own)["loss"]
        found.append([losses, tasks.weights_of(model)])
    handshake.report(fits=found)


def be_late(worker, epochs):
    """A worker waits in its first iteration until the chief has made all.

    Args:
        worker: label of the worker.
        epochs: their number.
    """
    _, model = make(tasks.Held)
    if os.environ["TASK_LABEL"] == worker:
        model.holds_before = (1,)
    x, y = tasks.data()
    logs = fit(model, epochs, validation_data=(x, y))
    handshake.report(logs=logs, weights=tasks.weights_of(model))


class SetsAtEnd(keras.callbacks.Callback):
    """Gives the model other weights when training ends."""

    def on_train_end(self, logs=None):
        """Doubles them."""
        weights = self.model.get_weights()
        self.model.set_weights([2 * one for one in weights])


def set_at_end(epochs):
    """Two calls of `fit`; a callback of the chief sets weights at the end.

    Args:
        epochs: of each.
    """
    strategy, model = make()
    callbacks = [SetsAtEnd()] if strategy.cluster.is_chief else []
    found = []
    for _ in range(2):
        losses = fit(model, epochs, callbacks=callbacks)["loss"]
        found.append([losses, tasks.weights_of(model)])
    handshake.report(fits=found)


def back_up(epochs):
    """A call with a backup; the chief waits in the callbacks of its last epoch.

    Then it sets weights, which the others have to take.

    Args:
        epochs: of the call.
    """
    strategy, model = make()

    def hold(epoch, logs):
        if epoch + 1 == epochs:
            print("holding", flush=True)
            handshake.wait_for("go on")

    callbacks = [
        keras.callbacks.BackupAndRestore("backup"),
        keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: print("has read", flush=True)
        ),
    ]
    if strategy.cluster.is_chief:
        callbacks.append(keras.callbacks.LambdaCallback(on_epoch_end=hold))
        callbacks.append(SetsAtEnd())
    fit(model, epochs, callbacks=callbacks)
    strategy.barrier()
    handshake.report(weights=tasks.weights_of(model))


def save_before_fit(directory):
    """Saves a model that was never in a step; then all load it.

    Args:
        directory: an empty one, where all write.
    """
    strategy, model = make()
    worker = strategy.cluster.worker_id
    # Each worker has a name of its own: what was written says by whom.
    for ending in (".keras", ".weights.h5"):
        save = model.save if ending == ".keras" else model.save_weights
        save(f"{directory}/method-{worker}{ending}")
    try:
        keras.saving.save_model(model, f"{directory}/function-{worker}.keras")
        refused = ""
    except RuntimeError as error:
        refused = str(error)
    strategy.barrier()
    model.load_weights(f"{directory}/method-0.weights.h5")
    strategy.barrier()
    names = sorted(os.listdir(directory))
    handshake.report(names=names, refused=refused)
