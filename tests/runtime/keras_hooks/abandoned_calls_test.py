"""A call of `fit` that an exception has ended, and the next one."""

import gc
import types

import keras
import pytest

from tests.runtime.keras_hooks.one_worker import Worker
from tests.runtime.keras_hooks.one_worker import begin
from tests.runtime.keras_hooks.one_worker import table
import tfdist
from tfdist import private_keras_calls
from tfdist import running_fit
from tfdist.cluster import fit_progress


def compiled(use_ema):
    """A model with averages of weights, or without."""
    model = keras.Sequential()
    model.compile(keras.optimizers.SGD(use_ema=use_ema))
    return model


def async_worker(number):
    """A worker of two whose other one is a call ahead when it ends one."""
    begun, ended = fit_progress.begun, fit_progress.ended
    later = [ended(1)] * 3 if number == 0 else [begun(2)]
    worker = Worker(number, table(begun(1)), table(*later))
    worker.runtime.local = worker.runtime.coordination = types.SimpleNamespace(
        waits=False, keeps_own_values=False, leave_if_over=lambda: None
    )
    return worker


def is_interrupted(worker, *callbacks):
    """A call of `fit` begins, and its first step raises."""

    def step():
        raise KeyboardInterrupt

    def fit(self, callbacks):
        frame = private_keras_calls.current_frame()
        worker.chief_decisions.watch(frame, running_fit.begin(frame))
        worker.chief_decisions.call(lambda function: function(), step)

    with pytest.raises(KeyboardInterrupt):
        fit(worker.model, keras.callbacks.CallbackList([*callbacks]))


@pytest.mark.parametrize("number", [0, 1], ids=["chief", "other"])
@pytest.mark.parametrize("averages", [True, False])
@pytest.mark.parametrize("is_gone", [True, False])
def test_who_was_interrupted_counts_as_there_if_that_call_puts_averages(
    number, averages, is_gone
):
    """However the model of the next call is compiled."""
    worker, waits = async_worker(number), []
    worker.chief_decisions._turns.wait_for_others = waits.append
    worker.model = compiled(averages)
    is_interrupted(worker)
    if is_gone:
        worker.model = None
        gc.collect()
        assert worker.chief_decisions._fit.model is None
        worker.model = compiled(use_ema=False)
    else:
        worker.model.compile(keras.optimizers.SGD(use_ema=not averages))
    begin(worker)
    assert worker.chief_decisions.fit_number == 2
    assert worker.membership.arrivals == averages
    if number == 0:
        # Or others would put averages over its next steps.
        assert waits[-1] == (averages or not is_gone)


@pytest.mark.parametrize("number", [0, 1], ids=["chief", "other"])
@pytest.mark.parametrize(
    ("callback", "waits"),
    {
        "figures of all": (lambda _: tfdist.callbacks.ClusterMonitor(), True),
        "files that all need": (
            lambda path: tfdist.callbacks.ClusterCheckpoint(
                path, delete_checkpoint=True
            ),
            True,
        ),
        "files that stay": (tfdist.callbacks.ClusterCheckpoint, False),
    }.values(),
)
def test_who_was_interrupted_counts_as_there_if_a_callback_waits_for_all(
    tmp_path, number, callback, waits
):
    """Or it would train its next call alone: the chief seems to wait for it."""
    worker = async_worker(number)
    worker.model = compiled(use_ema=False)
    is_interrupted(worker, callback(tmp_path))
    begin(worker)
    assert worker.membership.arrivals == waits
