"""What `saving_tasks.train_and_save` has to leave: the chief's files, whole."""

import csv
import json
import math

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import saving_tasks


class WrongFileError(AssertionError):
    """A file is missing, damaged, or not the chief's."""


def check(directory, report):
    """Checks all files that the program has left.

    Args:
        directory: where it ran, a `pathlib.Path`.
        report: the chief's.

    Returns:
        A dict from each way of saving to what is wrong with its files, a
        string, or to `None`.
    """
    checks = {
        "model.save": lambda: [
            _model(directory / name)
            for name in ("final.keras", "final.h5", "same.keras")
        ],
        "after the end": lambda: _is_same(directory / "same.keras", report),
        "model.save_weights": lambda: _weights(directory / "final.weights.h5"),
        "model.export": lambda: _exported(directory / "exported"),
        "ModelCheckpoint": lambda: [
            _model(directory / "checkpoint" / name)
            for name in (
                "model.keras",
                *(f"epoch-{n + 1}.keras" for n in range(saving_tasks.EPOCHS)),
            )
        ],
        "save_best_only": lambda: _model(
            directory / "checkpoint" / "best.keras"
        ),
        "save_weights_only": lambda: _weights(
            directory / "checkpoint" / "model.weights.h5"
        ),
        "BackupAndRestore": lambda: _backup(directory / "backup"),
        "CSVLogger": lambda: _log(directory / "log.csv", report["history"]),
        "TensorBoard": lambda: _board(directory / "board"),
        "nothing else": lambda: _no_drafts(directory),
    }
    return {way: _problem(one) for way, one in checks.items()}


def _problem(one):
    try:
        one()
    except Exception as error:  # Of all kinds: a file may hold anything.
        return f"{type(error).__name__}: {error}"
    return None


def _is_chief_s(writer, path):
    if int(writer) != 0:
        raise WrongFileError(f"{path} is of worker {int(writer)}")


def _model(path):
    # Of HDF5 Keras does not take its own short names of losses back.
    model = keras.models.load_model(path, compile=path.suffix != ".h5")
    _is_chief_s(model.layers[1].writer.numpy(), path)
    return model


def _is_same(path, report):
    if saving_tasks.checksum(_model(path)) != report["checksum"]:
        raise WrongFileError(f"{path} has other weights than the chief")


def _weights(path):
    model = saving_tasks.build()
    model.optimizer.build(model.trainable_variables)
    model.load_weights(path)
    _is_chief_s(model.layers[1].writer.numpy(), path)


def _exported(path):
    loaded = tf.saved_model.load(str(path))
    served = loaded.serve(tf.zeros([1, 8])).numpy()
    if not np.isfinite(served).all():
        raise WrongFileError(f"{path} answers {served}")
    reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    tensors = map(reader.get_tensor, reader.get_variable_to_dtype_map())
    writers = [t for t in tensors if getattr(t, "dtype", None) == np.int32]
    for writer in writers or [-1]:
        _is_chief_s(writer, path)


def _backup(path):
    _weights(path / "latest.weights.h5")
    metadata = json.loads((path / "training_metadata.json").read_text())
    if metadata["epoch"] != saving_tasks.EPOCHS:
        raise WrongFileError(f"{path}: {metadata}")


def _log(path, history):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    epochs = [row["epoch"] for row in rows]
    if epochs != [str(number) for number in range(saving_tasks.EPOCHS)]:
        raise WrongFileError(f"{path}: rows of the epochs {epochs}")
    for row, loss in zip(rows, history["loss"], strict=True):
        _is_chief_s(row["writer"], path)
        if not math.isclose(float(row["loss"]), loss):
            raise WrongFileError(f"{path}: {row['loss']} is not {loss}")


def _board(path):
    (events,) = path.glob("train/events.*")
    values = []
    # Reads the checksum of each record.
    for record in tf.data.TFRecordDataset(str(events)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        values += [
            tf.make_ndarray(value.tensor)
            for value in event.summary.value
            if value.tag == "epoch_writer"
        ]
    if len(values) != saving_tasks.EPOCHS:
        raise WrongFileError(f"{events}: {len(values)} epochs")
    for value in values:
        _is_chief_s(value, events)


def _no_drafts(path):
    if drafts := list(path.rglob(".draft-*")):
        raise WrongFileError(f"left over: {drafts}")
