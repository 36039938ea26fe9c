"""The chief's decisions on one worker, with tables that a test writes.

With real clusters: `tests.multi_process.decisions_test`.
"""

import contextlib
import dataclasses
import functools
import types

import keras
import pytest
import tensorflow as tf

import tfdist
from tfdist import private_keras_calls
from tfdist import running_fit
from tfdist.cluster import fit_progress
from tfdist.cluster import waiting
from tfdist.cluster.member_table import Member
from tfdist.cluster.member_table import MemberState
from tfdist.runtime.keras_hooks import chief_decisions
from tfdist.runtime.keras_hooks import fit_call
from tfdist.runtime.keras_hooks import queued_work
from tfdist.runtime.variables.variables import Role

NAMES = ("chief", "one", "two", "later")
WEIGHT = types.SimpleNamespace(role=Role.PARAMETER)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Who waits soon looks at the next table."""
    monkeypatch.setattr(waiting, "_POLL_SECONDS", 0.01)


class Worker:
    """A `ChiefDecisions` of a worker, and what it looks at.

    Its table is read from a list, one row of members after the other, the
    last one again and again.
    """

    def __init__(self, number, *tables, arrivals=0, **kwargs):
        """Makes it: the worker of that number."""
        self.reads = 0
        self._tables = tables
        store = types.SimpleNamespace(
            worker_variable=lambda value, name: tf.Variable(value),
            call=lambda function, *args: function(*args),
            pulled_version=lambda shard: self.version,
        )
        self.runtime = types.SimpleNamespace(
            store=store,
            journal=types.SimpleNamespace(count=0, begun=0),
            wait=functools.partial(
                waiting.wait_while_it_gets_on,
                stalled_after=lambda: 0.3,
                progress=lambda: [0],
            ),
            local=None,
            coordination=None,
            work=queued_work.NoQueuedWork(),
        )
        self.version = 0
        self.membership = membership = types.SimpleNamespace(
            fits=fit_progress.Fits(),
            read=self._read,
            tell=lambda: None,
            arrivals=arrivals,
            former=None,
            on_beat=[],
            count_along=lambda arrivals: setattr(
                membership, "arrivals", arrivals
            ),
        )
        config = types.SimpleNamespace(
            worker_names=NAMES, initial_workers=3, worker_id=number
        )
        self.chief_decisions = chief_decisions.ChiefDecisions(
            self.runtime,
            membership,
            config,
            worker_timeout=10.0,
            start_timeout=60.0,
            **kwargs,
        )

    def _read(self):
        table = self._tables[min(self.reads, len(self._tables) - 1)]
        self.reads += 1
        return table

    def begin(self, number):
        """Is in that call of `fit`; returns it."""

        class Frame:
            f_locals = {"self": keras.Sequential()}

        self.model = Frame.f_locals["self"]
        fit = self.chief_decisions._fit = fit_call.FitCall(Frame, number)
        fit.is_in_loop = True
        return fit

    def exchange(self, pulled, **told):
        """Makes an exchange that brings what the chief tells."""
        self.version = pulled
        self.runtime.journal.count += 1
        word = fit_progress.Word(**told).pack()
        self.chief_decisions._told.assign(word)
        self.chief_decisions._look(self.chief_decisions._fit)
        return self.chief_decisions._fit


def table(*words, state=MemberState.ALIVE, silent_for=0.0, arrivals=0):
    """A table: the first row is like that, the others train."""
    first, *others = [fit_progress.Word(reached=word) for word in words]
    rows = [Member("chief", state, silent_for, arrivals, word=first)]
    rows += [
        Member("other", MemberState.ALIVE, 0.0, 0, word=word) for word in others
    ]
    rows += [
        Member("other", MemberState.UNKNOWN, float("inf"), 0)
        for _ in NAMES[len(rows) :]
    ]
    return rows


AT_THE_END_OF_1 = fit_progress.closed(1)


@pytest.mark.parametrize(
    "over",
    [
        table(fit_progress.begun(2)),
        table(fit_progress.ended(2)),
        table(AT_THE_END_OF_1, state=MemberState.FINISHED),
        table(AT_THE_END_OF_1, state=MemberState.LEFT),
        table(AT_THE_END_OF_1, silent_for=11.0),
        # It waits for this worker in `barrier`.
        table(AT_THE_END_OF_1, arrivals=1),
        # It has been started again.
        table(0),
    ],
    ids="begun further finished left silent waits again".split(),
)
def test_a_call_of_fit_begins_after_the_chiefs_if_that_comes(over):
    waits = table(AT_THE_END_OF_1)
    worker = Worker(1, waits, waits, over)
    worker.chief_decisions._turns.wait_for_chief(
        fit_progress.begun(2), "to begin"
    )
    assert worker.reads == 3


def test_no_worker_waits_for_a_chief_that_makes_no_progress(caplog):
    worker = Worker(1, table(AT_THE_END_OF_1))
    assert (
        worker.chief_decisions._turns.wait_for_chief(
            fit_progress.begun(2), "to begin"
        )
        is None
    )
    assert "chief to begin. Going on without." in caplog.text


def test_the_chief_assigns_when_all_have_ended_their_call():
    begun, ended = fit_progress.begun(1), fit_progress.ended(1)
    worker = Worker(
        0,
        table(ended, begun, begun),
        table(ended, ended, begun),
        # Not yet there, and one of those that the cluster begins with.
        table(ended, ended),
        table(ended, ended, ended),
    )
    worker.chief_decisions._fits.tell(reached=ended)
    worker.chief_decisions.before_write(WEIGHT)
    assert worker.reads == 4
    # It has waited for this call.
    worker.chief_decisions.before_write(WEIGHT)
    assert worker.reads == 4


def test_the_chief_waits_for_nobody_before_and_within_fit():
    worker = Worker(0, table(0, 0, 0))
    worker.chief_decisions.before_write(WEIGHT)
    assert not worker.reads


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
    worker = Worker(1, table(AT_THE_END_OF_1))
    worker.begin(1).stopped = True
    done = []
    worker.runtime.pull = lambda: done.append("pull")
    worker.runtime.corrector = types.SimpleNamespace(
        show_ahead=lambda: done.append("look ahead")
    )
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
    worker.begin(1).rates = [rate]

    def step(exchanges):
        if exchanges:
            worker.version += 1
            worker.runtime.journal.count += 1
            word = fit_progress.Word(fit_progress.begun(1), rates=(0.5,))
            worker.chief_decisions._told.assign(word.pack())

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


@pytest.mark.parametrize("use_ema", [False, True])
def test_the_chief_goes_on_when_all_have_put_averages_in_place(use_ema):
    worker = Worker(0)
    worker.runtime.coordination = types.SimpleNamespace(waits=False)
    rule = keras.optimizers.SGD(use_ema=use_ema)
    model = keras.Sequential()
    for optimizer in (rule, keras.optimizers.LossScaleOptimizer(rule)):
        model.compile(optimizer)
        assert worker.chief_decisions._call_to_end(model, 5) == 4 * use_ema


def test_the_chief_begins_when_all_have_trained_what_a_call_keeps():
    """Such as the frozen encoder of a head: no exchange brings it."""
    worker, waits = Worker(0, table(0, 0, 0)), []
    worker.runtime.local = worker.runtime.coordination = types.SimpleNamespace(
        keeps_own_values=False, waits=False, finish=int, leave=int
    )
    decisions = worker.chief_decisions
    decisions._turns.wait_for_others = waits.append

    def model(*layers):
        return keras.Sequential([keras.Input([1]), *layers])

    def fit(model, *assigned):
        """Its steps assign these variables, beside one that it trains."""
        worker.model = model
        begin(worker)
        decisions._changes.begin(model, decisions.fit_number)
        for variable in [*assigned, *model.trainable_variables[:1]]:
            steps = getattr(variable.value, "num_assigning_steps", 0)
            variable.value.num_assigning_steps = steps + 1
        decisions.end_loop()
        decisions.close()

    encoder = keras.layers.Dense(1)
    pretrained, other = model(encoder), model(keras.layers.Dense(1))
    teacher = keras.layers.Dense(1)
    fit(pretrained)
    fit(other)
    fit(pretrained)
    encoder.trainable = False
    head = model(encoder, keras.layers.Dense(1))
    fit(head)
    fit(head)
    fit(model(encoder, keras.layers.Dense(1)))
    assert waits == [0, 0, 0, 3, 3, 3]
    # It is trained further, and frozen once more in the same model.
    encoder.trainable = True
    fit(pretrained)
    encoder.trainable = False
    fit(pretrained)
    # A step assigns what it does not train.
    teacher.trainable = False
    taught = model(teacher, keras.layers.Dense(1))
    fit(taught, *teacher.weights)
    fit(taught)
    fit(model(teacher))
    assert waits[6:] == [0, 7, 0, 0, 10]
    # Two heads by turns on one encoder with statistics that both move.
    norm = keras.layers.BatchNormalization()
    heads = [model(norm, keras.layers.Dense(1)) for _ in range(2)]
    statistics = norm.non_trainable_weights
    for head in heads:
        fit(head, *statistics)
    for head in heads:
        fit(head)
    norm.trainable = False
    probes = [model(norm, keras.layers.Dense(1)) for _ in range(2)]
    for probe in probes:
        fit(probe)
    assert waits[11:] == [0, 12, 0, 0, 15, 15]


def test_the_chief_that_has_passed_a_call_waits_for_what_it_changed():
    """Started again, it has not seen what the steps assign."""
    worker = Worker(0, table(0, 0, 0))
    decisions = worker.chief_decisions
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.layers[0].trainable = False
    head = keras.Sequential([model, keras.layers.Dense(1)])
    worker.runtime.coordination = types.SimpleNamespace(waits=False)
    worker.runtime.commit = int
    worker.runtime.unused_models = types.SimpleNamespace(refuse=list)
    worker.begin(1).is_in_loop = False
    decisions._fit._model = lambda: model
    decisions.position.begin = lambda *arguments: (0, 0)
    decisions.position._start = fit_progress.OVER
    decisions.begin_data(1, True)
    assert decisions._call_to_end(head, 2) == 1


def test_decisions_of_nobody_known_are_refused():
    with pytest.raises(ValueError, match="`decisions` must be one of.*'all'"):
        tfdist.AsyncStrategy(decisions="all")


def test_batches_that_are_not_the_chiefs_are_said_to_be_once(caplog):
    worker = Worker(1)
    fit = worker.begin(1)
    fit.is_in_loop = False
    worker.chief_decisions.note_data(lambda: 5)
    fit.is_in_loop = True
    # Of a `fit` within it.
    worker.chief_decisions.note_data(lambda: 6)
    begun = fit_progress.begun(1)
    for data, expected in ((0, 0), (5, 0), (7, 1), (7, 1)):
        worker.exchange(1, reached=begun, version=0, data=data)
        assert caplog.text.count("first batch of the PyDataset") == expected


def test_the_chief_has_the_newest_after_it_has_set_weights_in_fit():
    ended = fit_progress.ended(1)
    worker = Worker(0, table(ended, ended, ended))
    decisions, seen = worker.chief_decisions, []
    worker.runtime.pull = lambda: seen.append(decisions._fits.word.reached)
    for writes, expected in ((False, []), (True, [ended])):
        worker.begin(1)
        decisions._fits.number = 1
        decisions._fits.tell(reached=ended)
        if writes:
            decisions.before_write(WEIGHT)
        decisions.close()
        # Before it tells the others that all is there.
        assert seen == expected


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
    decisions._fit.calls_within = 0, 0
    begin(worker)
    assert decisions.number_of_order == orders[-1]


def test_a_call_to_which_a_worker_comes_back_at_its_end_has_been_one():
    """It takes no step, and the script's next call is the others' next."""
    member = table(0)[0]
    word = fit_progress.Word(reached=fit_progress.begun(1), epoch=1, batch=4)
    there = dataclasses.replace(member, word=word)
    worker = Worker(1, [there] * 3)
    worker.runtime.local = worker.runtime.coordination = Ends()
    worker.model = keras.Sequential()
    worker.chief_decisions._turns._membership.former = member
    begin(worker)
    decisions = worker.chief_decisions
    assert decisions.begin_data(size=4, skips=True) == (2, 0)
    begin(worker)
    assert decisions.number_of_order == 2


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
    worker.runtime.unused_models = types.SimpleNamespace(
        refuse=lambda variables: ends.calls.append(len(variables))
    )
    worker.model = model
    worker.membership.former = there
    return worker, ends.calls


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
        is_passed=True, before_write=lambda variable: None
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


@pytest.mark.parametrize(
    ("number", "reads", "waits", "looks"),
    {
        "a backup that the others have to read": (1, "reads_backup", False, 2),
        "a checkpoint that they have to read": (
            2,
            "reads_checkpoint",
            False,
            2,
        ),
        "first call": (1, "reads_checkpoint", True, 0),
        "workers wait for each other": (2, None, True, 2),
        "nobody waits": (2, None, False, 0),
    }.values(),
)
def test_when_the_chief_waits_for_all_to_begin(number, reads, waits, looks):
    begun, before = fit_progress.begun(number), fit_progress.closed(number - 1)
    worker = Worker(0, table(begun, before, begun), table(*[begun] * 3))
    worker.runtime.coordination = types.SimpleNamespace(waits=waits)
    worker.chief_decisions._take_over = lambda: None
    fit = worker.begin(number)
    position = worker.chief_decisions.position
    for name in ("reads_backup", "reads_checkpoint"):
        setattr(position, name, name == reads)
    worker.chief_decisions._tell_begun(fit)
    assert worker.reads == looks


@pytest.mark.parametrize(("first_epoch", "is_seen"), [(2, True), (3, False)])
def test_a_backup_that_only_the_chief_sees_is_refused(first_epoch, is_seen):
    word = fit_progress.Word(fit_progress.begun(1), first_epoch=first_epoch)
    waits = table(fit_progress.closed(0))
    chief = Member("chief", MemberState.ALIVE, 0.0, 0, word=word)
    worker = Worker(1, waits, [chief])
    decisions = worker.chief_decisions
    decisions.position.reads_backup = True
    fit = worker.begin(1)
    decisions._fits.tell(first_epoch=2)
    expected = contextlib.nullcontext()
    if not is_seen:
        expected = pytest.raises(ValueError, match="resumed .* epoch 4, .* 3")
    with expected:
        decisions._tell_begun(fit)
    assert worker.reads == 2
    has_begun = decisions._fits.word.reached == fit_progress.begun(1)
    assert has_begun == is_seen


def test_a_call_begins_over_the_loss_of_a_server():
    """With a look-ahead, of which the servers hold a part."""
    worker = Worker(1, table(*[fit_progress.begun(2)] * 2))
    store, left, done = worker.runtime.store, [True], []

    def show_ahead():
        if left.pop():
            left.append(False)
            raise tf.errors.AbortedError(None, None, "another life")
        done.append("ahead")

    def call(function, *args):
        try:
            return function(*args)
        except tf.errors.AbortedError:
            return function(*args)

    store.call = call
    worker.runtime.pull = lambda: None
    worker.runtime.corrector = types.SimpleNamespace(show_ahead=show_ahead)
    worker.chief_decisions._tell_begun(worker.begin(2))
    assert done == ["ahead"]


@pytest.mark.parametrize(("written", "follows"), [(0, 0), (1, 0), (2, 1)])
def test_own_weights_follow_what_the_chief_has_set(written, follows):
    """With local steps whose workers go on from weights of their own."""
    word = fit_progress.Word(fit_progress.begun(2), written=written)
    row = Member("chief", MemberState.ALIVE, 0.0, 0, word=word)
    worker, done = Worker(1, [row]), []
    worker.runtime.pull = lambda: done.append("pull")
    worker.runtime.corrector = types.SimpleNamespace(show_ahead=lambda: None)
    worker.runtime.local = types.SimpleNamespace(
        adopt_given=lambda: done.append("adopt")
    )
    worker.chief_decisions._tell_begun(worker.begin(2))
    assert done == ["pull", *["adopt"] * follows]


def test_the_chief_tells_that_it_has_set_weights_once():
    """Others' own weights follow; not what it sets before its later steps."""
    worker = Worker(0, table(*[fit_progress.closed(9)] * 3))
    worker.runtime.pull = lambda: None
    worker.runtime.corrector = types.SimpleNamespace(show_ahead=lambda: None)
    worker.runtime.coordination = types.SimpleNamespace(waits=False)
    decisions, told = worker.chief_decisions, []
    counter = types.SimpleNamespace(role=Role.ITERATIONS)
    weight, nothing = [WEIGHT], []
    for number, (between, before_a_step, at_the_end) in enumerate(
        [
            (weight, nothing, nothing),
            (nothing, weight, nothing),
            (nothing, nothing, weight),
            (nothing, nothing, nothing),
            ([counter], nothing, nothing),
            (weight, nothing, nothing),
        ],
        1,
    ):
        for variable in between:
            decisions.before_write(variable)
        fit = worker.begin(number)
        decisions._fits.number = number
        decisions._tell_begun(fit)
        told.append(decisions._fits.word.written)
        for variable in before_a_step:
            decisions.before_write(variable)
        decisions.call(lambda function: function(), lambda: None)
        fit.is_in_loop, fit.has_ended = False, True
        for variable in at_the_end:
            decisions.before_write(variable)
        decisions.close()
    assert told == [1, 1, 1, 4, 4, 6]


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

    class Trains(keras.callbacks.Callback):
        def train(self, *args):
            steps.append(args)
            decisions.call(lambda function: function(), lambda: None)

        on_epoch_begin = on_train_end = train

    listed = keras.callbacks.CallbackList([Trains()])
    fit = worker.begin(1)
    fit.is_in_loop = False
    fit.frame = types.SimpleNamespace(
        f_locals={"self": worker.model, "callbacks": listed}
    )
    listed.on_train_begin()
    listed.on_epoch_begin(0)
    assert steps == [(0, {})]
    assert len(listed.callbacks) == 3
    listed.on_train_end()
    assert steps == [(0, {}), ({},)]
    assert not decisions.number_of_order


def begin(worker, callbacks=None):
    """A call of `fit` begins."""
    model = worker.model

    def fit(self, callbacks=callbacks):
        frame = private_keras_calls.current_frame()
        worker.chief_decisions.watch(frame, running_fit.begin(frame))

    fit(model)
