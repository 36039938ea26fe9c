"""Calls of `fit` that a restarted process leaves out."""

import contextlib

import keras
import pytest

from tests.sandblaster import tasks
from tests.sandblaster.fits import fit
import tfdist

pytestmark = pytest.mark.usefixtures("float64")


@contextlib.contextmanager
def later_call_under_way(strategy):
    """Scope in which the chief's process before has begun a later call."""
    board = strategy._training.board
    before = board.read()
    board.change(lambda record, now: record.update(fit=99, done=1))
    try:
        yield
    finally:
        board.change(
            lambda record, now: (record.clear(), record.update(before))
        )


@pytest.fixture
def alone():
    """A strategy of the test's own."""
    return tfdist.SandblasterStrategy(portions_per_worker=5)


def test_callbacks_see_no_epoch_of_a_call_that_is_left_out(alone, tmp_path):
    model = tasks.make_model(alone)
    path = tmp_path / "best.keras"
    fit(model, 2, callbacks=[keras.callbacks.ModelCheckpoint(path)])
    trained = path.read_bytes()
    again = tasks.make_model(alone)
    callbacks = [
        keras.callbacks.ModelCheckpoint(path),
        # Of no epoch, there is no loss to name a file by.
        keras.callbacks.ModelCheckpoint(tmp_path / "{loss:.3f}.keras"),
    ]
    with later_call_under_way(alone):
        logs = fit(
            again, 2, callbacks=callbacks, validation_data=tasks.data()
        ).history
    assert not logs
    assert path.read_bytes() == trained
    assert list(tmp_path.iterdir()) == [path]
    # The next call begins where the user says.
    assert len(fit(again, 3).history["loss"]) == 3


def test_a_model_that_is_not_trained_here_is_not_saved(alone, tmp_path, caplog):
    path = tmp_path / "model.keras"
    path.write_text("what the process before has saved")
    model = tasks.make_model(alone)
    with later_call_under_way(alone):
        fit(model, 2)
        model.evaluate(*tasks.data(), verbose=0)
        model.save(path)
    assert path.read_text() == "what the process before has saved"
    assert f"model.save of {path} is left out" in caplog.text
    fit(model, 1)
    model.save(path)
    keras.models.load_model(path)
