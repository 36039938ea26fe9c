"""An ordinary program, which saves on every worker, and tells who saved.

An integer weight stays with its worker: each puts its own number there, so
that a file says whose it is.
"""

import hashlib
import pathlib

import keras
import numpy as np

from tests.multi_process import handshake
import tfdist

EPOCHS = 3


@keras.saving.register_keras_serializable("tests")
class Signed(keras.layers.Layer):
    """The input, and a weight that says who has saved it."""

    def build(self, input_shape):
        """Makes the weight."""
        self.writer = self.add_weight(
            shape=(),
            dtype="int32",
            initializer=keras.initializers.Constant(-1),
            trainable=False,
            name="writer",
        )
        self.built = True

    def call(self, inputs):
        """Returns the input; an exported function has the weight as well."""
        return inputs + keras.ops.cast(0 * self.writer, inputs.dtype)


class TellWriter(keras.callbacks.Callback):
    """Puts the number of the worker into the logs."""

    def __init__(self, number):
        """Takes the number."""
        super().__init__()
        self._number = number

    def on_epoch_end(self, epoch, logs=None):
        """Adds it."""
        logs["writer"] = self._number


def build():
    """The model, compiled."""
    model = keras.Sequential(
        [
            keras.Input([8]),
            keras.layers.Dense(64, activation="relu"),
            Signed(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    return model


def checksum(model):
    """Of all trainable weights, a string."""
    content = b"".join(w.numpy().tobytes() for w in model.trainable_weights)
    return hashlib.sha256(content).hexdigest()


def callbacks(worker):
    """All of Keras's callbacks that write files, each to one place."""
    return [
        TellWriter(worker),
        keras.callbacks.ModelCheckpoint("checkpoint/model.keras"),
        keras.callbacks.ModelCheckpoint("checkpoint/epoch-{epoch}.keras"),
        keras.callbacks.ModelCheckpoint(
            "checkpoint/best.keras", monitor="loss", save_best_only=True
        ),
        keras.callbacks.ModelCheckpoint(
            "checkpoint/model.weights.h5", save_weights_only=True, save_freq=2
        ),
        keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False),
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.TensorBoard("board"),
    ]


def train_and_save():
    """Saves in all ways that Keras has, on every task, without a thought."""
    strategy = tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0)
    )
    with strategy.scope():
        model = build()
    worker = strategy.cluster.worker_id
    model.layers[1].writer.assign(worker)
    x = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
    history = model.fit(
        x,
        x[:, :1],
        batch_size=4,
        epochs=EPOCHS,
        verbose=0,
        callbacks=callbacks(worker),
    )
    model.save("final.keras")
    model.save_weights("final.weights.h5")
    model.export("exported", verbose=False)
    # All are here at the same time, and have the same parameters.
    strategy.barrier()
    strategy.pull()
    model.save("same.keras")
    handshake.report(
        history=history.history,
        checksum=checksum(model),
    )
    # Last: a `.keras` file of later has no optimizer (Keras 3.15).
    model.save("final.h5")
    # Also without training since the last one.
    strategy.barrier()
    assert pathlib.Path("final.h5").exists()
