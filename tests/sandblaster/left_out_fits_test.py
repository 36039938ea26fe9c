"""Calls of `fit` that a restarted process leaves out."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.sandblaster import ending_tasks
from tests.sandblaster import tasks
from tests.sandblaster.fits import fit
from tests.sandblaster.fits import later_call_under_way
from tests.sandblaster.fits import own_step
import tfdist
from tfdist import private_keras

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.nightly
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
    again.load_weights(path)
    assert len(fit(again, 3).history["loss"]) == 3


@pytest.mark.nightly
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


class Stops(keras.callbacks.Callback):
    """Ends `fit` with an exception at the end of an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self._epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        """Ends it."""
        if epoch == self._epoch:
            raise KeyboardInterrupt


def restart(strategy):
    """Has the next call of `fit` be the first one of a restarted chief."""
    strategy._training._fit, strategy._training._number = None, -1


@pytest.mark.nightly
@pytest.mark.parametrize("first", [0, 2])
def test_a_restarted_chief_with_a_backup_leaves_no_iteration_out(
    alone, tmp_path, first
):
    def losses(*callbacks):
        return fit(
            tasks.make_model(alone),
            first + 5,
            initial_epoch=first,
            callbacks=list(callbacks),
        ).history["loss"]

    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        losses(backup, Stops(first + 2))
    restart(alone)
    found = losses(backup)
    assert found == losses()[3:]


@pytest.mark.nightly
@pytest.mark.parametrize("has_file", [True, False])
def test_a_chief_killed_in_a_resumed_run_makes_as_many_iterations(
    alone, tmp_path, has_file
):
    """On new servers, the run goes on from the file of two epochs."""

    def losses(strategy, *callbacks):
        model = tasks.make_model(strategy)
        logs = fit(model, 6, callbacks=list(callbacks)).history
        return logs["loss"]

    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        losses(tfdist.SandblasterStrategy(), backup, Stops(1))
    with pytest.raises(KeyboardInterrupt):
        losses(alone, backup, Stops(3))
    restart(alone)
    again = losses(alone, *[backup] * has_file)
    # Without a file, it shows its last iteration once more.
    assert len(again) == (2 if has_file else 3)
    assert alone._training.board.read()["done"] == 4


@pytest.mark.nightly
def test_a_restarted_chief_stops_where_the_process_before_has_stopped(alone):
    """A callback had ended the call, of which the others have heard."""
    losses = fit(
        tasks.make_model(alone), 9, callbacks=[ending_tasks.StopsAfter(3)]
    ).history["loss"]
    restart(alone)
    assert fit(tasks.make_model(alone), 9).history["loss"] == losses[2:]


@pytest.mark.nightly
def test_a_chief_killed_after_the_last_backup_ends_the_call(alone, tmp_path):
    """The others wait for its end, which it tells them after a step."""
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        fit(tasks.make_model(alone), 2, callbacks=[backup, Stops(1)])
    restart(alone)
    last = alone.iterations[-1]["value"]
    logs = fit(tasks.make_model(alone), 2, callbacks=[backup]).history
    assert logs["loss"] == [pytest.approx(last)]
    board = alone._training.board.read()
    assert (board["done"], board["ended"]) == (2, True)


@pytest.mark.nightly
def test_a_call_that_is_left_out_has_no_epoch_after_those_of_a_file(
    alone, tmp_path
):
    """A callback had stopped it before its last epoch."""
    backup = keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
    stops = ending_tasks.StopsAfter(1)
    fit(tasks.make_model(alone), 3, callbacks=[backup, stops])
    file = tmp_path / "training_metadata.json"
    before = file.read_text()
    again = tasks.make_model(alone)
    with later_call_under_way(alone):
        assert not fit(again, 3, callbacks=[backup]).history
    assert file.read_text() == before
    # The next call begins where the user says.
    assert len(fit(again, 2).history["loss"]) == 2


@pytest.mark.nightly
def test_a_restarted_chief_logs_what_the_train_step_returns(alone):
    """It shows the last iteration again, of which it computes no portion."""
    with pytest.raises(KeyboardInterrupt):
        fit(own_step(alone), 9, callbacks=[Stops(1)])
    restart(alone)
    logs = fit(own_step(alone), 2).history
    values = [one["value"] for one in alone.iterations]
    assert logs == {"loss": values[-1:]}
    assert values[-1] == values[-2]


def shuffled():
    """Data in another order in each epoch, the same in each process."""
    data = tf.data.Dataset.from_tensor_slices(tasks.data())
    return data.shuffle(tasks.EXAMPLES, seed=1).batch(20)


class Shuffles(keras.utils.PyDataset):
    """Data that is shuffled at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self._random = np.random.default_rng(1)
        self._order = np.arange(tasks.EXAMPLES)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        rows = self._order[24 * index : 24 * index + 24]
        return tuple(part[rows] for part in tasks.data())

    def on_epoch_end(self):
        """Shuffles."""
        self._random.shuffle(self._order)


class BeginsWith(keras.callbacks.Callback):
    """Has `fit` begin with an epoch, as it does when its task was restarted."""

    def __init__(self, epoch):
        super().__init__()
        self._epoch = epoch

    def on_train_begin(self, logs=None):
        """Sets it."""
        private_keras.set_initial_epoch(self.model, self._epoch)


def read_in(strategy, monkeypatch):
    """The features that calls of `fit` read, a list that grows.

    The strategy takes itself for one of two workers: one alone would have no
    order in common with others.
    """
    config = types.SimpleNamespace(
        num_workers=2, data_share=(2, 0), is_local=False, is_chief=True
    )
    monkeypatch.setattr(strategy.extended, "_config", config)
    begin, read = strategy._training.begin, []

    def seen(model, gradients, batches, *others):
        read.append(np.concatenate([x for x, _ in batches]))
        return begin(model, gradients, batches, *others)

    monkeypatch.setattr(strategy._training, "begin", seen)
    return read


@pytest.mark.nightly
@pytest.mark.parametrize("make", [shuffled, Shuffles])
def test_a_restarted_task_reads_the_order_that_the_others_have_read(
    monkeypatch, make
):
    found = []
    for epoch in (0, 2):
        strategy = tfdist.SandblasterStrategy()
        found.append(read_in(strategy, monkeypatch))
        model = tasks.make_model(strategy)
        logs = model.fit(
            make(),
            epochs=4,
            shuffle=False,
            verbose=0,
            callbacks=[BeginsWith(epoch)],
        ).history
        assert len(logs["loss"]) == 4 - epoch
    np.testing.assert_array_equal(*found)


@pytest.mark.nightly
def test_a_task_that_has_made_fewer_epochs_reads_the_order_of_the_others(
    monkeypatch,
):
    """In the second call of `fit` on the same data."""
    found = []
    for first in (4, 1):
        strategy = tfdist.SandblasterStrategy()
        read = read_in(strategy, monkeypatch)
        model, data = tasks.make_model(strategy), shuffled()
        for epochs in (first, 1):
            model.fit(data, epochs=epochs, verbose=0)
        found.append(read)
    np.testing.assert_array_equal(*found)
