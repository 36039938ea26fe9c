"""Keras's callbacks that write files write them on the chief alone."""

import copy
import os
import pathlib
import threading

import keras
import numpy as np
import pytest

from tests import nightly
from tests.saving import clusters
import tfdist
from tfdist.saving import callbacks
from tfdist.saving import models

X = np.ones([8, 3], "float32")
Y = np.ones([8, 2], "float32")


@pytest.fixture(scope="module")
def traced():
    """A model for several tests, which only the first of them traces."""
    return build()


def build():
    """A small compiled model."""
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    return model


def fit(given, files=None, epochs=2, model=None):
    """Fits on a task, as a strategy has Keras do it; returns the losses."""
    model = model or build()
    if files is not None:
        models.see(model, files)
        callbacks.see(given, files)
    return model.fit(X, Y, epochs=epochs, verbose=0, callbacks=given).history[
        "loss"
    ]


class Subclass(keras.callbacks.CSVLogger):
    """One of a user's own, that counts on the file."""

    def on_epoch_end(self, epoch, logs=None):
        """Writes more."""
        super().on_epoch_end(epoch, logs)
        self.csv_file.write("more")


_MAKE = {
    "ModelCheckpoint": lambda path: keras.callbacks.ModelCheckpoint(
        path / "deep" / "a.keras"
    ),
    "by batches": lambda path: keras.callbacks.ModelCheckpoint(
        path / "a.weights.h5", save_weights_only=True, save_freq=1
    ),
    "BackupAndRestore": lambda path: keras.callbacks.BackupAndRestore(
        path, delete_checkpoint=False
    ),
    "CSVLogger": lambda path: keras.callbacks.CSVLogger(path / "a.csv"),
    "appended": lambda path: keras.callbacks.CSVLogger(
        path / "a.csv", append=True
    ),
    "Subclass": lambda path: Subclass(path / "a.csv"),
    "TensorBoard": lambda path: keras.callbacks.TensorBoard(path),
}


def tree(path):
    """All files under a directory."""
    return sorted(p for p in path.rglob("*") if p.is_file())


_FIRST = ["ModelCheckpoint", "CSVLogger", "TensorBoard"]


@pytest.mark.parametrize(
    "name", nightly.also(_FIRST, [name for name in _MAKE if name not in _FIRST])
)
def test_another_worker_writes_but_its_own_files(
    tmp_path, name, traced, capsys
):
    files = clusters.files_of()
    callback = _MAKE[name](tmp_path)
    given = dict(vars(callback))
    fit([[callback]], files, model=traced)
    fit(callback, files, model=traced)
    assert not os.listdir(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    told = [line for line in lines if "left to" in line]
    assert len(told) == 1 and str(tmp_path) in told[0]
    with files.own():
        fit([callback], files, model=traced)
    assert tree(tmp_path)
    for attribute in ("save_freq", "delete_checkpoint", "filename", "log_dir"):
        if attribute in given:
            assert getattr(callback, attribute) == given[attribute]


@pytest.mark.parametrize("given", [keras.callbacks.CSVLogger, None, "a.csv"])
def test_what_is_no_callback_is_refused_by_name(given):
    with pytest.raises(ValueError, match="Argument `callbacks` must be .*Rec"):
        callbacks.see([given], clusters.files_of())


class _Evaluates(keras.callbacks.Callback):
    """Evaluates at the end of each epoch, with callbacks of its own."""

    def __init__(self, given):
        super().__init__()
        self._given = given

    def on_epoch_end(self, epoch, logs=None):
        """Evaluates."""
        self.model.evaluate(X, Y, verbose=0, callbacks=self._given)


@pytest.mark.parametrize("writes", nightly.also([True], [False]))
@pytest.mark.parametrize(
    "make, owner",
    nightly.also(
        [(tfdist.AllReduceStrategy, lambda made: made.extended.engine)],
        [(tfdist.AsyncStrategy, lambda made: made._runtime)],
    ),
)
def test_an_evaluation_within_fit_writes_on_the_chief_alone(
    tmp_path, make, owner, writes
):
    strategy = make()
    owner(strategy).files = clusters.chief() if writes else clusters.files_of()
    with strategy.scope():
        model = build()
    given = [_MAKE["TensorBoard"](tmp_path)]
    model.fit(X, Y, verbose=0, callbacks=[_Evaluates(given)])
    assert bool(tree(tmp_path)) is writes


@pytest.mark.parametrize(
    "files", [clusters.chief(), clusters.files_of("evaluator", 0)]
)
def test_chief_and_evaluator_write_as_ever(tmp_path, files, traced):
    given = [_MAKE["CSVLogger"](tmp_path), _MAKE["TensorBoard"](tmp_path)]
    fit(given, files, model=traced)
    assert len(tree(tmp_path)) == 2
    rows = (tmp_path / "a.csv").read_text().splitlines()
    assert len(rows) == 3


@pytest.mark.parametrize("append", [False, True])
def test_rows_of_a_former_process_are_kept_in_this_call(tmp_path, append):
    rows = ["epoch,loss", "0,1.0"]
    (tmp_path / "a.csv").write_text("\n".join([*rows, ""]))
    logger = keras.callbacks.CSVLogger(tmp_path / "a.csv", append=append)
    callbacks.see([logger], clusters.chief())
    for _ in range(2):
        # Where a server was lost, once more.
        callbacks.keep_rows([logger])
    logger.on_train_begin()
    logger.on_epoch_end(1, {"loss": 0.5})
    logger.on_train_end()
    path = tmp_path / "a.csv"
    assert path.read_text().splitlines()[:2] == rows
    # The next call is as it was given, with a header.
    callbacks.see([logger], clusters.chief())
    assert logger.append is append
    path.unlink()
    logger.on_train_begin()
    logger.on_epoch_end(0, {"loss": 0.25})
    logger.on_train_end()
    assert path.read_text().startswith("epoch,loss")


def test_other_workers_resume_from_the_chief_s_backup(tmp_path):
    backup = _MAKE["BackupAndRestore"](tmp_path)
    fit(backup, clusters.chief())
    before = {path: path.read_bytes() for path in tree(tmp_path)}
    other = _MAKE["BackupAndRestore"](tmp_path)
    assert len(fit(other, clusters.files_of(), epochs=5)) == 3
    assert {path: path.read_bytes() for path in tree(tmp_path)} == before
    assert type(copy.copy(other)) is keras.callbacks.BackupAndRestore
    # `delete_checkpoint=True`, Keras's default, is the chief's to do.
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    fit(backup, clusters.files_of(), epochs=3)
    assert tree(tmp_path) == list(before)


@pytest.mark.nightly
def test_a_backup_that_is_being_written_is_read_when_it_is_whole(tmp_path):
    fit(_MAKE["BackupAndRestore"](tmp_path), clusters.chief())
    metadata = pathlib.Path(tmp_path, "training_metadata.json")
    whole = metadata.read_text()
    metadata.write_text("")
    read = threading.Event()

    class Reads(keras.callbacks.BackupAndRestore):
        def on_train_begin(self, logs=None):
            try:
                super().on_train_begin(logs)
            finally:
                read.set()

    def write():
        read.wait()
        metadata.write_text(whole)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert len(fit(Reads(tmp_path), clusters.files_of(), epochs=5)) == 3
    finally:
        read.set()
        writer.join()


def test_orbax_is_told_by_an_attribute_that_it_has():
    kind = getattr(keras.callbacks, "OrbaxCheckpoint", None)
    if kind is None:
        pytest.skip("This version of Keras has none.")
    callback = kind.__new__(kind)  # It needs a package that is not there.
    callback.save_freq, callback.directory = "epoch", "somewhere"
    callback._last_batch_seen = None
    callback._batches_seen_since_last_saving = callback._total_batches_seen = 0
    callbacks.see(callback, clusters.files_of())
    assert not callback._should_save_on_batch(10**9)
    assert callback.save_freq != "epoch"
