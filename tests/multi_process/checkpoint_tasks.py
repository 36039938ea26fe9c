"""What the tasks of clusters do whose state is saved while it changes."""

import keras

from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist
from tfdist import correction
from tfdist.callbacks import ClusterCheckpoint


class _UntilOver(keras.callbacks.Callback):
    """Trains until the chief has saved often enough."""

    def on_train_batch_end(self, batch, logs=None):
        if handshake.told("over"):
            self.model.stop_training = True


def _build(momentum):
    strategy = tfdist.ParameterServerStrategy(
        correction=correction.DANA("zero", momentum),
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0),
    )
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.125)
    model = tasks.build_sum_of_weights(strategy, optimizer)
    return strategy, model


def save_while_others_train(saves):
    """The chief saves its model again and again, the others train on.

    Args:
        saves: how often.
    """
    strategy, model = _build(0.5)
    worker = strategy.cluster.worker_id
    # A directory of each worker's own, or they would write one file.
    callbacks = [
        keras.callbacks.BackupAndRestore(
            f"backup-{worker}", save_freq=2, delete_checkpoint=False
        )
    ]
    steps = 10**6
    if strategy.cluster.is_chief:
        steps = 2 * saves
        callbacks += [
            ClusterCheckpoint("state", save_freq=2, keep=saves + 1),
            keras.callbacks.ModelCheckpoint(
                "saved-{batch}.weights.h5", save_weights_only=True, save_freq=2
            ),
        ]
    else:
        callbacks += [ClusterCheckpoint("state"), _UntilOver()]
    model.fit(
        tasks.own_data(1.0),
        steps_per_epoch=steps,
        verbose=0,
        callbacks=callbacks,
    )
    open("over", "w").close()
    handshake.report(done=True)


def _slots(strategy, model):
    """What the correction has on the servers after one more gradient.

    Of zero, with which all that is kept goes down by the momentum.
    """
    if not strategy.cluster.is_chief:
        return None
    model.fit(tasks.own_data(0.0), steps_per_epoch=1, verbose=0)
    return {
        name: value.tolist()
        for name, value in strategy.state.read().arrays.items()
        if name.startswith("correction/")
    }


def resume(directory, epochs):
    """Resumes, trains no more, and reports what is there.

    Args:
        directory: of the checkpoints.
        epochs: that they have made.
    """
    strategy, model = _build(0.5)
    checkpoint = ClusterCheckpoint(directory)
    model.fit(
        tasks.own_data(1.0),
        steps_per_epoch=1,
        epochs=epochs,
        verbose=0,
        callbacks=[checkpoint],
    )
    handshake.report(
        epoch=checkpoint.resumed_epoch,
        weights=[w.ravel().tolist() for w in model.get_weights()],
        iterations=int(model.optimizer.iterations.numpy()),
        updates=strategy.updates_applied(),
        slots=_slots(strategy, model),
    )
    strategy.barrier()


class _FirstLoss(keras.callbacks.Callback):
    """Notes the loss of the first batch."""

    loss = None

    def on_train_batch_end(self, batch, logs=None):
        if self.loss is None:
            self.loss = logs["loss"]


def go_on_after_evaluation(callback, epochs):
    """Evaluates, and then resumes; reports the first loss of `fit`.

    Args:
        callback: name of the callback that saves and resumes.
        epochs: up to which to train.
    """
    strategy = tfdist.AsyncStrategy(fault_tolerance=tasks.PATIENT)
    with strategy.scope():
        optimizer = keras.optimizers.Adam(0.125)
    model = tasks.build_sum_of_weights(strategy, optimizer)
    model.evaluate(tasks.own_data(1.0), steps=1, verbose=0)
    # The chief puts nothing back before all have its first values.
    strategy.barrier()
    if callback == "ClusterCheckpoint":
        resuming = ClusterCheckpoint("saved")
    else:
        resuming = keras.callbacks.BackupAndRestore(
            "saved", delete_checkpoint=False
        )
    first = _FirstLoss()
    model.fit(
        tasks.own_data(1.0),
        steps_per_epoch=4,
        epochs=epochs,
        verbose=0,
        callbacks=[resuming, first],
    )
    handshake.report(loss=first.loss)
