"""A `BackupAndRestore` of a chief that was killed and started again."""

import itertools
import types

import keras
import numpy as np
import pytest

from tests import nightly
from tests.runtime.exchange import delay_test
from tests.runtime.replicas import one_run
import tfdist
from tfdist.saving import callbacks

_runs = itertools.count()


class Chief(delay_test.VirtualWorker):
    """A chief, of which another one of its run is the next life."""

    @property
    def state(self):
        return self.runtime.state

    def backup(self, path):
        """A `BackupAndRestore` of a call of `fit` that is about to begin."""
        made = keras.callbacks.BackupAndRestore(path, delete_checkpoint=False)
        callbacks.see_backups(made)
        made.set_model(self.model)
        return made

    def values(self):
        """What servers hold of the model and its optimizer, a list."""
        found = self.model.weights + self.model.optimizer.variables
        return [v.numpy() for v in found if v.value.role.is_on_server]


def chief(run):
    return Chief(f"backups_test/{run}", 0).build(
        lambda: keras.optimizers.SGD(0.125, momentum=0.5), [delay_test.Aside]
    )


@pytest.mark.parametrize("has_committed", nightly.also([False], [True]))
def test_servers_keep_what_they_have_learned_since_the_backup(
    tmp_path, has_committed
):
    run = next(_runs)
    first = chief(run)
    x = np.ones([4, delay_test.FEATURES], "float32")
    first.step(x, x[:, :1])
    first.model.optimizer.learning_rate = 0.25
    backup = first.backup(tmp_path)
    backup.on_epoch_end(2)
    first.model.optimizer.learning_rate = 0.5
    first.step(x, x[:, :1])
    first.runtime.pull()
    trained = first.values()
    again = chief(run)
    if has_committed:
        # In the first call of `fit`, nothing may have been asked for before.
        again.runtime.commit()
    again.backup(tmp_path).on_train_begin()
    again.runtime.commit()
    assert again.model._initial_epoch == 3
    # What servers do not hold is as in the file.
    assert again.model.optimizer.learning_rate == 0.25
    first.runtime.pull()
    for worker in (first, again):
        for now, before in zip(worker.values(), trained, strict=True):
            np.testing.assert_array_equal(now, before)


@pytest.mark.nightly
@pytest.mark.parametrize("takes_no_step", [True, False])
def test_a_call_that_was_ended_early_is_not_trained_to_its_end(
    tmp_path, monkeypatch, takes_no_step
):
    run = next(_runs)
    first = chief(run)
    x = np.ones([4, delay_test.FEATURES], "float32")
    first.step(x, x[:, :1])
    # The chief has stopped training after epoch 2.
    first.backup(tmp_path).on_epoch_end(2)
    again = chief(run)
    looks = []
    decisions = types.SimpleNamespace(
        takes_no_step=takes_no_step, look_again=lambda: looks.append(True)
    )
    monkeypatch.setattr(again.runtime, "chief_decisions", decisions)
    again.model._initial_epoch = 2**31
    again.backup(tmp_path).on_train_begin()
    assert again.model._initial_epoch == (2**31 if takes_no_step else 3)
    assert bool(looks) is not takes_no_step


@pytest.mark.parametrize(
    "make",
    nightly.also([tfdist.AsyncStrategy], [tfdist.AllReduceStrategy]),
)
@pytest.mark.parametrize("epochs", [3, 2], ids=["goes on", "nothing left"])
def test_the_call_after_one_that_was_resumed_has_all_its_epochs(
    tmp_path, make, epochs
):
    """On one worker alone fewer ones would end all that wait for it."""
    strategy, x = make(), np.ones([2, 1])
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    backup = keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
    model.fit(x, x, epochs=2, callbacks=[backup], verbose=0)
    again = keras.callbacks.BackupAndRestore(tmp_path)
    resumed = model.fit(x, x, epochs=epochs, callbacks=[again], verbose=0)
    assert resumed.epoch == [*range(2, epochs)]
    assert model.fit(x, x, epochs=3, verbose=0).epoch == [0, 1, 2]


@pytest.mark.nightly
@pytest.mark.parametrize("has_committed", [False, True])
def test_what_servers_have_lost_is_as_in_the_backup(tmp_path, has_committed):
    """As when all workers and one of several servers died."""
    run = next(_runs)
    first = chief(run)
    x = np.ones([4, delay_test.FEATURES], "float32")
    first.step(x, x[:, :1])
    saved = first.values()
    first.backup(tmp_path).on_epoch_end(2)
    kernel = first.model.weights[0].value
    one_run.lose(first.runtime, kernel)
    again = chief(run)
    again.runtime.recovery = types.SimpleNamespace(
        wait_until_settled=lambda *_: True,
        is_needed=False,
        call=lambda function, *arguments: function(*arguments),
    )
    if has_committed:
        again.runtime.commit()
    again.backup(tmp_path).on_train_begin()
    again.runtime.commit()
    again.runtime.pull()
    np.testing.assert_array_equal(again.values()[0], saved[0])


@pytest.mark.nightly
def test_a_new_run_begins_with_the_backup(tmp_path):
    first = chief(next(_runs))
    x = np.ones([4, delay_test.FEATURES], "float32")
    first.step(x, x[:, :1])
    saved = first.values()
    first.backup(tmp_path).on_epoch_end(2)
    other = chief(next(_runs))
    other.runtime.commit()
    other.backup(tmp_path).on_train_begin()
    other.runtime.pull()
    for now, before in zip(other.values(), saved, strict=True):
        np.testing.assert_array_equal(now, before)
