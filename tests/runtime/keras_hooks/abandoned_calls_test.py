"""A call of `fit` that an exception has ended, and the next one."""

import gc
import types

import keras
import pytest

from tests.runtime.keras_hooks.one_worker import Worker
from tests.runtime.keras_hooks.one_worker import begin
from tests.runtime.keras_hooks.one_worker import table
from tfdist import private_keras_calls
from tfdist import running_fit
from tfdist.cluster import fit_progress


def compiled(use_ema):
    """A model with averages of weights, or without."""
    model = keras.Sequential()
    model.compile(keras.optimizers.SGD(use_ema=use_ema))
    return model


def is_interrupted(worker):
    """A call of `fit` begins, and its first step raises."""

    def step():
        raise KeyboardInterrupt

    def fit(self, callbacks):
        frame = private_keras_calls.current_frame()
        worker.chief_decisions.watch(frame, running_fit.begin(frame))
        worker.chief_decisions.call(lambda function: function(), step)

    with pytest.raises(KeyboardInterrupt):
        fit(worker.model, keras.callbacks.CallbackList())


@pytest.mark.parametrize("number", [0, 1], ids=["chief", "other"])
@pytest.mark.parametrize("averages", [True, False])
@pytest.mark.parametrize("is_gone", [True, False])
def test_who_was_interrupted_counts_as_there_if_that_call_puts_averages(
    number, averages, is_gone
):
    """However the model of the next call is compiled."""
    others = [fit_progress.ended(1)] * 3 if number == 0 else []
    worker = Worker(
        number,
        table(fit_progress.begun(1)),
        table(*others or [fit_progress.begun(2)]),
    )
    worker.runtime.local = worker.runtime.coordination = types.SimpleNamespace(
        waits=False, keeps_own_values=False, leave_if_over=lambda: None
    )
    waits, turns = [], worker.chief_decisions._turns
    turns.wait_for_others = waits.append
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
