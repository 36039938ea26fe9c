"""A worker's count of its calls of `fit`, also of one that comes back."""

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


class Ends:
    """What a call of `fit` that is over asks of its strategy."""

    keeps_own_values = False

    def __init__(self):
        self.calls = []

    def leave_if_over(self):
        self.calls.append("leave")


@pytest.mark.parametrize("number", [0, 1])
def test_a_call_that_raised_has_ended_when_the_next_begins(number):
    other = fit_progress.closed(1)
    # The chief, and another worker, have ended it and wait for this one.
    worker = Worker(number, table(*[other if number == 0 else other + 1] * 2))
    worker.runtime.local = worker.runtime.coordination = told = Ends()
    told.waits = True
    fit = worker.begin(1)
    worker.chief_decisions._fits.tell(reached=fit_progress.begun(1))
    worker.chief_decisions._fits.number = 1
    seen = []
    worker.chief_decisions._membership.tell = lambda: seen.append(
        worker.chief_decisions._fits.word.reached
    )
    fit.has_begun = True
    begin(worker)
    assert told.calls == ["leave"]
    # Before it waits for others.
    assert seen[0] == fit_progress.closed(1)
    assert worker.chief_decisions.number_of_order == 2


def test_a_call_that_was_refused_before_its_first_step_was_none():
    worker = Worker(0, table(0, 0))
    worker.runtime.local = worker.runtime.coordination = told = Ends()
    told.waits = True
    worker.begin(1)
    begin(worker)
    assert worker.chief_decisions.number_of_order == 1


def test_steps_after_a_call_that_was_refused_are_none_of_it():
    """Such as `train_on_batch`."""
    worker = Worker(0, table(0, 0))
    worker.runtime.local = worker.runtime.coordination = told = Ends()
    told.waits = True
    worker.model = keras.Sequential()
    begin(worker)
    step = worker.chief_decisions.call(lambda f, *args: f(*args), float, 3)
    assert step == 3.0
    assert not worker.chief_decisions.is_in_loop


def test_calls_within_one_have_orders_of_their_own():
    worker = Worker(0, table(0, 0))
    worker.begin(1)
    decisions = worker.chief_decisions
    decisions._fits.is_around = lambda frame: True
    orders = [decisions.number_of_order]
    for epoch in (4, 4, 5):
        decisions._fits.tell(epoch=epoch)
        begin(worker)
        orders.append(decisions.number_of_order)
    assert orders[0] == 1
    assert len(set(orders)) == 4
    # One that has been started again in epoch 5 makes the same.
    decisions._fit._calls_within = 0, 0
    begin(worker)
    assert decisions.number_of_order == orders[-1]


def comes_back(number, model, keeps_own_values=False):
    """A worker that was killed in the second call of its script; begins again.

    The others are in that call, and the chief has come to epoch 7, batch 3.
    """
    member = table(0)[0]
    word = fit_progress.Word(reached=fit_progress.begun(2), epoch=7, batch=3)
    there = dataclasses.replace(member, word=word)
    worker = Worker(number, [there] * 3)
    ends = Ends()
    ends.waits, ends.keeps_own_values = False, keeps_own_values
    worker.runtime.local = worker.runtime.coordination = ends
    worker.runtime.commit = lambda: ends.calls.append("commit")
    worker.runtime.pull = lambda: ends.calls.append("pull")
    worker.runtime.unused_models = types.SimpleNamespace(
        refuse=lambda variables: ends.calls.append(len(variables))
    )
    worker.model = model
    worker.membership.former = there
    return worker, ends.calls


@pytest.mark.parametrize("number", [0, 1], ids=["chief", "other"])
def test_a_call_to_which_a_worker_comes_back_at_its_end_has_been_one(number):
    """It takes no step, and still saves what servers hold.

    The script's next call is the others' next.
    """
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    worker, calls = comes_back(number, model)
    decisions = worker.chief_decisions
    for _ in range(2):
        begin(worker)
    assert (decisions.fit_number, decisions.is_passed) == (2, False)
    decisions.position._end_epoch = 8
    calls.clear()
    # The others, or the chief before it died, have done all batches.
    assert decisions.begin_data(size=3, skips=True) == (8, 0)
    assert calls == ["commit", len(model.variables)]
    begin(worker)
    assert decisions.number_of_order == 3


def test_a_call_that_a_callback_resumes_at_its_end_has_been_one():
    """It takes no step, and the others have made it."""
    worker = Worker(0, table(0))
    worker.model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    ends = Ends()
    ends.waits = ends.keeps_own_values = False
    worker.runtime.local = worker.runtime.coordination = ends
    decisions, numbers = worker.chief_decisions, []
    for ends in (False, True, True, False):
        begin(worker, ends=ends)
        numbers.append(decisions.fit_number)
    assert numbers == [1, 1, 2, 3]


def test_a_call_that_the_others_end_while_a_backup_is_looked_for_is_passed():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    worker, calls = comes_back(1, model)
    decisions = worker.chief_decisions
    for _ in range(2):
        begin(worker)
    calls.clear()
    decisions.look_again()
    assert calls == [] and not decisions.is_passed
    decisions._turns.position = lambda number: fit_progress.OVER
    decisions.look_again()
    assert decisions.is_passed
    assert calls == ["commit", len(model.variables), "pull"]
    # No epoch is left to Keras.
    assert model._initial_epoch == fit_progress.OVER[0]
    begin(worker)
    assert decisions.fit_number == 3


def test_a_chief_without_a_step_waits_until_others_have_read_its_backup():
    """It tells its end first: they may wait for that."""
    late = fit_progress.closed(0)
    worker = Worker(0, table(0, late, 1))
    worker.runtime.local = worker.runtime.coordination = ends = Ends()
    ends.waits = False
    worker.model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    decisions, told = worker.chief_decisions, []
    word = worker.membership.fits
    worker.membership.tell = lambda: told.append(
        (word.word.reached, word.word.completed, word.word.first_epoch)
    )
    begin(worker)
    worker.model._initial_epoch = 5
    del told[:]
    worker.reads = 0
    worker._tables = [table(0, late, 1), table(0, late, 1), table(0, 1, 1)]
    decisions.await_readers()
    assert told == [(fit_progress.ended(1), 1, 5)]
    assert worker.reads == 3
    # One that has trained has waited in its first step.
    decisions._fit.has_stepped = True
    decisions.await_readers()
    assert len(told) == 1


def test_who_ends_a_call_tells_so_before_it_waits_for_the_next():
    """It may die as it waits."""
    worker = Worker(1, table(0))
    worker.model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    worker.runtime.local = worker.runtime.coordination = Ends()
    decisions, told = worker.chief_decisions, []
    begin(worker, ends=True)
    word = decisions._fits
    worker.membership.tell = lambda: told.append(word.word.came_to)
    decisions._turns.wait_for_chief = lambda *args: told.append("waits")
    begin(worker)
    assert told == [1, 2, "waits"]


def test_who_was_lost_with_the_first_server_goes_on_as_others_tell():
    """They have told since this process was there."""
    layers = [keras.Input([1]), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    worker, _ = comes_back(1, model)
    former = worker.membership.former
    worker.membership.former = table(0)[3]
    worker.membership.find_former = lambda: setattr(
        worker.membership, "former", former
    )
    begin(worker)
    decisions = worker.chief_decisions
    assert (decisions.fit_number, decisions.is_passed) == (1, True)
    begin(worker)
    assert decisions.fit_number == 2
    assert decisions.begin_data(size=9, skips=True) == (7, 3)


@pytest.mark.parametrize(
    ("epochs", "size", "number"), [(9, 9, 2), (7, 9, 3), (9, 0, 2)]
)
def test_a_call_that_is_refused_when_its_data_is_there_is_none_if_some_is_left(
    epochs, size, number
):
    """Also of a worker that comes back to it, in epoch 7."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    worker, calls = comes_back(1, model, keeps_own_values=True)
    decisions = worker.chief_decisions
    begin(worker)
    assert decisions.fit_number == 2
    decisions.position._end_epoch = epochs
    calls.clear()
    decisions.begin_data(size=size, skips=True)
    # A step of its own commits what it makes, if there is one.
    assert ("commit" in calls) == (epochs == 7)
    begin(worker)
    assert decisions.fit_number == number


def test_a_call_of_a_callback_at_the_end_leaves_out_nothing():
    """Of a worker that came back: its own call went on in epoch 7."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    worker, _ = comes_back(1, model)
    decisions = worker.chief_decisions
    for _ in range(2):
        begin(worker)
    assert decisions.begin_data(size=9, skips=True) == (7, 3)
    model._initial_epoch = None
    decisions._fits.is_around = lambda frame: True
    begin(worker)
    assert not decisions.is_in_loop
    assert decisions.begin_data(size=2, skips=True) == (0, 0)
    assert model._initial_epoch is None


@pytest.mark.parametrize("number", [0, 1], ids=["chief", "other"])
@pytest.mark.parametrize("callback", [None, "resumes"])
def test_calls_that_others_have_ended_are_passed_by_who_comes_back(
    tmp_path, number, callback
):
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        layers = [keras.Input([1]), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse")
    worker, calls = comes_back(number, model)
    decisions = worker.chief_decisions
    resumes = [tfdist.callbacks.ClusterCheckpoint(tmp_path)]
    begin(worker, resumes if callback else None)
    assert decisions.fit_number == 1
    assert decisions.begin_data(size=9, skips=True) == (1, 0)
    # The callback may find nothing: it may have deleted its files at the end.
    assert model._initial_epoch == fit_progress.OVER[0]
    assert decisions.is_passed
    # All variables of its first step are there, and none is freed.
    assert model.optimizer.built
    assert calls == ["commit", len(model.variables)]
    begin(worker)
    assert decisions.fit_number == 2
    assert not decisions.is_passed
    # It is refused before its first step, and made again.
    begin(worker)
    assert decisions.fit_number == 2
    assert decisions.begin_data(size=9, skips=True) == (7, 3)
    # Which it has found the others in: from now on it is one of them.
    begin(worker)
    assert decisions.fit_number == 3
    assert decisions.begin_data(size=9, skips=True) == (0, 0)


def test_the_end_of_a_call_that_is_passed_leaves_weights_to_the_others():
    """Others train on; Keras would put averages in place (`use_ema`)."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        weight = tf.Variable(1.0)
    strategy._runtime.commit()
    decisions = types.SimpleNamespace(
        is_passed=True, before_write=lambda variable: True
    )
    strategy._runtime.chief_decisions = decisions
    for is_passed, value in ((True, 1.0), (False, 2.0)):
        decisions.is_passed = is_passed
        strategy.extended.update(
            weight, lambda v, new: v.assign(new), args=(2.0,)
        )
        strategy._runtime.pull()
        assert float(weight.numpy()) == value


@pytest.mark.parametrize("what", ["unbuilt", "two optimizers", "local steps"])
def test_calls_whose_first_step_makes_variables_are_not_passed(what):
    """Variables that come later would have other numbers than on others."""
    layers = [keras.Input([1]), keras.layers.Dense(1)]
    model = keras.Sequential(None if what == "unbuilt" else layers)
    model.compile("sgd", "mse")
    if what == "two optimizers":
        model.second = keras.optimizers.SGD()
    worker, _ = comes_back(1, model, what == "local steps")
    decisions = worker.chief_decisions
    begin(worker)
    assert decisions.fit_number == 2
    assert decisions.begin_data(size=9, skips=True) == (7, 3)
    # The chief has ended all that it has, and waits for this worker.
    closed = fit_progress.closed(2)
    worker._tables = [table(closed, closed, arrivals=1)]
    begin(worker)
    assert decisions.fit_number == 3
    decisions.begin_data(size=9, skips=True)
    assert model._initial_epoch == fit_progress.OVER[0]


@pytest.mark.parametrize("finds", ["begun", "closed"])
def test_later_calls_are_not_passed_as_the_chief_was_in_barrier_before(finds):
    """Callbacks of calls that are passed do not come there."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    worker, _ = comes_back(1, model)
    decisions, at = worker.chief_decisions, getattr(fit_progress, finds)
    worker._tables = [
        table(*[at(2 if finds == "begun" else 1)] * 2, arrivals=4)
    ]
    begin(worker)
    assert decisions.is_passed
    decisions.begin_data(size=9, skips=True)
    waits = decisions._turns.wait_for_chief

    def wait_for_chief(reached, what):
        # It begins its call now, or has before.
        worker._tables = [
            *[worker._tables[-1]] * 4,
            table(reached, reached, arrivals=4),
        ]
        worker.reads = 0
        waits(reached, what)

    decisions._turns.wait_for_chief = wait_for_chief
    for _ in range(2):
        begin(worker)
        assert not decisions.is_passed
        decisions._fit.has_begun = True
    # It has ended the last one, and waits there once more.
    worker._tables = [table(*[fit_progress.closed(3)] * 2, arrivals=5)]
    decisions._turns.wait_for_chief = waits
    begin(worker)
    assert decisions.is_passed


def test_who_comes_late_for_the_first_time_is_in_the_others_call():
    member = table(fit_progress.begun(2))[0]
    turns = Worker(1, [member] * 3).chief_decisions._turns
    assert turns.next_number(passes=True, may_pass=True) == 2


def chief_after(call):
    """A chief that was killed when all had ended that call; begins again."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    worker, _ = comes_back(0, model)
    closed = fit_progress.Word(reached=fit_progress.closed(call), came_to=call)
    row = dataclasses.replace(table(0)[0], word=closed)
    worker.membership.former = row
    worker._tables = [[row, row, row]]
    return worker


def test_a_chief_that_comes_back_has_the_rates_of_the_calls_that_it_passes():
    worker = chief_after(3)
    decisions, rate = worker.chief_decisions, worker.model.optimizer
    kept = decisions._rates._kept()
    rates = {"1": [0.25], "3": [0.125]}
    kept.change(lambda record, now: record.update(rates))
    for expected in (0.25, 1.0, 0.125):
        begin(worker)
        assert decisions.is_passed
        assert float(rate.learning_rate) == expected
        # As the script does between calls.
        rate.learning_rate = 1.0
    # The next one is new.
    begin(worker)
    assert kept.read() == rates
    assert not decisions.is_passed
    assert float(rate.learning_rate) == 1.0


def test_rates_are_kept_of_calls_that_have_changed_them():
    worker = Worker(0, table(0, 0, 0))
    worker.runtime.local = worker.runtime.coordination = types.SimpleNamespace(
        keeps_own_values=False, waits=False, finish=int, leave=int
    )
    worker.runtime.pull = worker.runtime.show_ahead = lambda: None
    worker.model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    worker.model.compile(keras.optimizers.SGD(0.5), "mse")
    decisions, rate = worker.chief_decisions, worker.model.optimizer
    decisions._turns.wait_for_others = int
    # By callbacks: before the first step, in one, and at the end.
    for first, within, end in (
        (0.5, 0.5, 0.5),
        (0.5, 0.25, 0.25),
        (0.25, 1.0, 0.25),
        (0.125, 0.125, 0.125),
    ):
        begin(worker)
        rate.learning_rate = first
        decisions._tell_begun(decisions._fit)
        rate.learning_rate = within
        decisions.end_loop()
        rate.learning_rate = end
        decisions.close()
        assert worker.membership.fits.word.rates == (end,)
    # A call without a step has no rates but the script's.
    rate.learning_rate = 0.75
    worker.runtime.coordination.leave_if_over = int
    begin(worker, ends=True)
    begin(worker)
    assert decisions._rates._kept().read() == {"2": [0.25], "4": [0.125]}
