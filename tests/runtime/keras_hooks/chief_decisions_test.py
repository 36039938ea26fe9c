"""The chief's decisions on one worker while all train.

Tables are the test's. With real clusters: `tests.multi_process.decisions_test`.
"""

import dataclasses
import types

import keras
import pytest
import tensorflow as tf

from tests.runtime.keras_hooks.one_worker import Worker
from tests.runtime.keras_hooks.one_worker import begin
from tests.runtime.keras_hooks.one_worker import table
import tfdist
from tfdist.cluster import fit_progress
from tfdist.cluster.member_table import MemberState
from tfdist.runtime.keras_hooks import fit_call


def test_a_stop_counts_from_the_next_update_on():
    worker = Worker(1)
    fit = worker.begin(1)
    worker.exchange(1, reached=fit_progress.begun(1), version=0)
    assert not fit.stopped
    # The chief has seen no more than this worker: those who are slower
    # than both see the same at this step.
    worker.exchange(2, reached=fit_progress.begun(1), version=2, stopped=1)
    assert not fit.stopped
    worker.exchange(3, reached=fit_progress.ended(1), version=2, stopped=1)
    assert fit.stopped
    assert worker.model.stop_training


def test_a_stop_counts_though_no_update_follows():
    worker = Worker(1)
    fit = worker.begin(1)
    for expected in (False, True):
        # Both gradients have been dropped.
        worker.exchange(2, reached=fit_progress.begun(1), version=2, stopped=1)
        assert fit.stopped is expected


def test_a_call_that_was_stopped_ends_with_the_parameters():
    """And not with the look-ahead that a correction trains on."""
    worker = Worker(1, table(fit_progress.closed(1)))
    worker.begin(1).stopped = True
    done = []
    worker.runtime.pull = lambda: done.append("pull")
    worker.runtime.show_ahead = lambda: done.append("look ahead")
    worker.chief_decisions.close()
    assert done == ["pull"]


def test_a_stop_of_another_call_does_not_count():
    worker = Worker(1)
    fit = worker.begin(2)
    worker.exchange(3, reached=fit_progress.begun(1), version=2, stopped=1)
    assert not fit.stopped


@pytest.mark.parametrize(
    ("now", "goes_on"),
    [
        (table(fit_progress.begun(1)), True),
        (table(fit_progress.begun(1), silent_for=11.0), False),
        (table(fit_progress.begun(1), state=MemberState.FAILED), False),
        (table(fit_progress.ended(1)), False),
        (table(fit_progress.closed(1), state=MemberState.FINISHED), False),
    ],
    ids="trains silent failed ended finished".split(),
)
def test_another_worker_stops_alone_only_where_the_chief_does_not_train(
    now, goes_on
):
    worker = Worker(1, now)
    worker.begin(1)
    worker.model.stop_training = True
    worker.chief_decisions.after_callbacks()
    assert worker.model.stop_training is not goes_on


def test_a_callback_cannot_take_back_what_the_chief_has_stopped():
    worker = Worker(1)
    fit = worker.begin(1)
    fit.stopped = True
    worker.model.stop_training = False
    worker.chief_decisions.after_callbacks()
    assert worker.model.stop_training


def test_with_local_steps_a_callback_s_rate_lasts_until_an_exchange():
    worker = Worker(1)
    worker.runtime.local = types.SimpleNamespace(keeps_own_values=True)
    rate = tf.Variable(1.0)
    fit = worker.begin(1)
    fit.rates, fit.has_stepped = [rate], True

    def step(exchanges):
        if exchanges:
            worker.version += 1
            worker.runtime.journal.count += 1
            word = fit_progress.Word(fit_progress.begun(1), rates=(0.5,))
            worker.chief_decisions.chiefs_word._told.assign(word.pack())

    def call(exchanges):
        worker.chief_decisions.call(lambda function: function(exchanges), step)

    call(exchanges=True)
    assert rate.numpy() == 0.5
    # As at the beginning of an epoch.
    rate.assign(0.125)
    call(exchanges=False)
    assert rate.numpy() == 0.125
    call(exchanges=True)
    assert rate.numpy() == 0.5


def comes_back(number, last, rate=0.5):
    """A worker that begins its first call of `fit` as the chief was known.

    Args:
      number: The worker's.
      last: The chief's `Word`.
      rate: The learning rate of the model as it was compiled.
    """
    row = dataclasses.replace(table(0)[0], word=last)
    worker = Worker(number, [row, *table(1, 1)[1:]])
    worker.membership.former = row
    worker.runtime.local = worker.runtime.coordination = types.SimpleNamespace(
        waits=False, keeps_own_values=False, leave_if_over=lambda: None
    )
    worker.model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    worker.model.compile(keras.optimizers.SGD(rate), "mse")
    begin(worker)
    return worker, worker.model.optimizer.learning_rate


@pytest.mark.parametrize(
    "call, rates, expected",
    {
        "it was in this call": (1, (0.125,), 0.125),
        "it was in a later call": (2, (0.125,), 0.5),
        "its model had two optimizers": (1, (0.125, 0.25), 0.5),
        "it had not begun": (0, (), 0.5),
    }.values(),
)
def test_a_chief_that_comes_back_goes_on_with_the_rates_that_it_had_told(
    call, rates, expected
):
    """Before callbacks see that training begins: what they set counts."""
    reached = fit_progress.begun(call) if call else 0
    last = fit_progress.Word(reached=reached, epoch=4, batch=7, rates=rates)
    worker, rate = comes_back(0, last)
    assert float(rate) == expected
    rate.assign(0.0625)
    fit = worker.chief_decisions._fit
    fit.find_rates()
    worker.chief_decisions._tell_begun(fit)
    assert worker.membership.fits.word.rates == (0.0625,)


def test_the_rates_of_the_last_epochs_end_are_told_with_the_calls():
    """Also where nobody knows how many batches an epoch has."""
    worker = Worker(0, table(1, 1))
    fit, fits = worker.begin(1), worker.membership.fits
    worker.runtime.local = types.SimpleNamespace(finish=lambda: None)
    worker.runtime.coordination = types.SimpleNamespace(
        waits=False, leave=lambda: None
    )
    fit.rates = [tf.Variable(0.25)]
    worker.chief_decisions.end_loop()
    assert fits.word.reached == fit_progress.ended(1)
    assert fits.word.rates == (0.25,)


def test_a_call_that_is_tried_again_keeps_the_rate_that_was_set_meanwhile():
    last = fit_progress.Word(
        reached=fit_progress.begun(1), epoch=4, batch=7, rates=(0.125,)
    )
    worker, rate = comes_back(0, last)
    assert float(rate) == 0.125
    rate.assign(0.0625)
    # It has failed before its first step.
    begin(worker)
    assert worker.chief_decisions.fit_number == 1
    assert float(rate) == 0.0625


def test_another_worker_that_comes_back_begins_with_the_rates_of_the_chief():
    last = fit_progress.Word(
        reached=fit_progress.begun(1), epoch=4, batch=7, rates=(0.125,)
    )
    worker, rate = comes_back(1, last)
    rates, decisions = [], worker.chief_decisions
    decisions._fit.find_rates()
    decisions._tell_begun(decisions._fit)
    decisions._fit.is_in_loop = True
    decisions.call(lambda step: step(), lambda: rates.append(float(rate)))
    assert rates == [0.125]


def test_who_comes_while_the_chief_starts_again_begins_with_it():
    """And not where the others were when it came."""

    def rows(chief, epoch):
        word = fit_progress.Word(fit_progress.begun(1), epoch=epoch)
        now, _, *unseen = table(chief, 0)
        if chief:
            now = dataclasses.replace(now, word=word)
        return [now, dataclasses.replace(now, word=word), *unseen]

    later = 3
    worker = Worker(later, *[rows(0, 4)] * 3, rows(fit_progress.begun(1), 9))
    worker.runtime.local = types.SimpleNamespace(keeps_own_values=False)
    worker.model = keras.Sequential()
    begin(worker)
    worker.chief_decisions.begin_data(size=10, skips=True)
    assert worker.model._initial_epoch == 9


def test_rates_of_all_optimizers_of_a_model_are_known(caplog):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    model.second = keras.optimizers.Adam(0.25)
    model.third = keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    )
    # A wrapper's own rate is never used.
    wrapped = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(2.0))
    parts = keras.optimizers.OptimizerMap(
        keras.optimizers.SGD(3.0), {"x": keras.optimizers.SGD(4.0)}
    )
    model.others = {
        "more": [wrapped, model.second],
        "parts": keras.optimizers.MultiOptimizer(parts),
    }

    def rates():
        frame = types.SimpleNamespace(f_locals={"self": model})
        call = fit_call.FitCall(frame, 1)
        call.find_rates()
        return list(call.own_rates())

    found = rates()
    # A model with optimizers of its own may never use that of `compile`.
    assert found[:2] + found[-1:] == [0.25, 2.0, 0.5]
    assert sorted(found[2:-1]) == [3.0, 4.0]
    model.last = [keras.optimizers.SGD(10.0 + k) for k in range(4)]
    assert not caplog.text
    assert rates() == found[:-1] + [10.0, 11.0, 12.0, 13.0]
    assert "has 9 learning rates" in caplog.text


def test_rates_that_the_first_step_makes_are_followed_after_it():
    """Those of a wrapper whose rules are a function."""
    worker = Worker(0)
    fit = worker.begin(1)
    model = worker.model
    own, other = keras.optimizers.SGD(0.5), keras.optimizers.SGD(0.25)
    model.compile(keras.optimizers.MultiOptimizer(lambda _: own))
    model.other = other
    fit.find_rates()
    # The wrapper has one that means nothing.
    assert fit.own_rates() == (0.25,)
    weights = [keras.Variable(1.0)]
    worker.chief_decisions.call(
        lambda function: function(weights), model.optimizer.build
    )
    assert fit.own_rates() == (0.25, 0.5)


def test_decisions_of_nobody_known_are_refused():
    with pytest.raises(ValueError, match="`decisions` must be one of.*'all'"):
        tfdist.AsyncStrategy(decisions="all")


@pytest.mark.parametrize(
    ("is_seed", "said"),
    [(False, "first batch of the PyDataset"), (True, "with another seed")],
)
def test_data_that_is_not_the_chiefs_is_said_to_be_once(is_seed, said, caplog):
    worker = Worker(1)
    worker.begin(1)
    worker.chief_decisions.note_data(lambda: 5, is_seed)
    # Of a `fit` within it.
    worker.chief_decisions._fits.is_around = lambda frame: True
    begin(worker)
    worker.chief_decisions.note_data(lambda: 6, is_seed)
    begun = fit_progress.begun(1)
    for data, expected in ((0, 0), (5, 0), (7, 1), (7, 1)):
        worker.exchange(1, reached=begun, version=0, data=data)
        assert caplog.text.count(said) == expected


def test_a_first_step_is_told_of_when_it_is_sent_and_may_not_end_yet():
    """As its gradient was dropped, and waits for others' next ones."""
    worker = Worker(
        1, table(*[fit_progress.begun(1)] * 2), starts_together=True
    )
    decisions = worker.chief_decisions
    worker.begin(1)
    seen = []

    def step():
        for begun in range(2):
            worker.runtime.journal.begun = begun
            for function in worker.membership.on_beat:
                function()
            seen.append(decisions._fits.word.batch)

    decisions._turns.wait_for_start = lambda: seen.append("waits")
    worker.runtime.local = types.SimpleNamespace(keeps_own_values=False)
    decisions.call(lambda function: function(), step)
    assert seen == [0, 1, "waits"]
    assert not worker.membership.on_beat


def test_callbacks_train_batches_before_and_after_the_steps_of_fit():
    """A callback is called once; steps at the end go straight through."""
    worker = Worker(0, table(0))
    worker.runtime.local = types.SimpleNamespace(finish=lambda: None)
    worker.runtime.coordination = types.SimpleNamespace(
        waits=False, leave=lambda: None
    )
    decisions, steps = worker.chief_decisions, []
    decisions._fits.is_running = lambda: True

    class Trains(keras.callbacks.Callback):
        def train(self, *args):
            steps.append(args)
            decisions.call(lambda function: function(), lambda: None)

        on_train_begin = on_epoch_begin = on_train_end = train

    listed = keras.callbacks.CallbackList([Trains()])
    fit = worker.begin(1)
    fit.is_in_loop = False
    fit.frame = types.SimpleNamespace(
        f_locals={"self": worker.model, "callbacks": listed},
        f_code=types.SimpleNamespace(co_varnames=("epoch",)),
    )
    # Keras reads only then with which epoch it begins.
    decisions.position._release = lambda: steps.append("released")
    listed.on_train_begin()
    # The others may wait for the call, and begin it.
    assert decisions._fits.word.reached == fit_progress.begun(1)
    assert steps == [({},)]
    assert len(listed.callbacks) == 4
    fit.frame.f_locals["epoch"] = 0
    listed.on_epoch_begin(0)
    assert steps == [({},), (0, {}), "released"]
    assert fit.frame is None
    listed.on_train_end()
    assert steps[3:] == [({},)]
    assert not decisions.number_of_order
