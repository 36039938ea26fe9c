"""Waits between two calls of `fit`, and what workers take over from others."""

import contextlib
import types

import keras
import pytest
import tensorflow as tf

from tests.runtime.keras_hooks.one_worker import WEIGHT
from tests.runtime.keras_hooks.one_worker import Worker
from tests.runtime.keras_hooks.one_worker import begin
from tests.runtime.keras_hooks.one_worker import table
from tfdist.cluster import fit_progress
from tfdist.cluster.member_table import Member
from tfdist.cluster.member_table import MemberState
from tfdist.runtime.variables.variables import Role

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


@pytest.mark.parametrize("use_ema", [False, True])
def test_the_chief_goes_on_when_all_have_put_averages_in_place(use_ema):
    worker = Worker(0)
    worker.runtime.coordination = types.SimpleNamespace(waits=False)
    rule = keras.optimizers.SGD(use_ema=use_ema)
    model = keras.Sequential()
    for optimizer in (rule, keras.optimizers.LossScaleOptimizer(rule)):
        model.compile(optimizer)
        assert (
            worker.chief_decisions._values.call_to_end(model, 5) == 4 * use_ema
        )


def test_the_chief_waits_for_averages_of_the_call_before():
    """Though the model is compiled without them since."""
    worker = Worker(0, table(0, 0, 0))
    worker.runtime.local = worker.runtime.coordination = types.SimpleNamespace(
        keeps_own_values=False, waits=False, finish=int, leave=int
    )
    decisions = worker.chief_decisions
    for use_ema, waits in ((True, True), (False, True), (False, False)):
        fit = worker.begin(1)
        worker.model.compile(keras.optimizers.SGD(use_ema=use_ema))
        fit.find_averages()
        decisions._values.begin(worker.model, 1)
        assert decisions._values.call_to_end(worker.model, 2) == waits
        decisions.end_loop()


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
        decisions._values.begin(model, decisions.fit_number)
        for variable in [*assigned, *model.trainable_variables[:1]]:
            number = getattr(variable.value, "num_assignments", 0)
            variable.value.num_assignments = number + 1
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
    assert decisions._values.call_to_end(head, 2) == 1


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
    worker.chief_decisions._values.take_over = lambda: None
    # One of them may have asked for what is new before it begins.
    committed_at = []
    worker.runtime.commit = lambda: committed_at.append(worker.reads)
    fit = worker.begin(number)
    position = worker.chief_decisions.position
    for name in ("reads_backup", "reads_checkpoint"):
        setattr(position, name, name == reads)
    worker.chief_decisions._tell_begun(fit)
    assert worker.reads == looks
    assert committed_at == [0] * bool(looks)


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
    assert worker.reads == 3
    has_begun = decisions._fits.word.reached == fit_progress.begun(1)
    assert has_begun == is_seen


@pytest.mark.parametrize(
    ("committed", "is_held", "begins", "takes_over"),
    {
        "an evaluation of this worker": (1, True, True, True),
        "one of the chief": (0, True, True, True),
        "none": (0, False, True, False),
        "in the midst of training": (0, True, False, False),
    }.values(),
)
def test_a_first_call_begins_with_what_the_chief_has_set_before_it(
    committed, is_held, begins, takes_over
):
    before, begun = table(0), table(fit_progress.begun(1))
    worker, done = Worker(1, *[before] * begins, begun), []
    worker.runtime.committed = committed
    worker.runtime.is_held = lambda: is_held
    worker.chief_decisions._values.take_over = lambda: done.append(worker.reads)
    worker.chief_decisions._tell_begun(worker.begin(1))
    assert len(done) == takes_over
    # When the chief has begun it.
    assert worker.reads > begins


@pytest.mark.parametrize(
    ("others_train", "has_come_back", "passes"),
    {
        "the first start": (False, False, True),
        "back to training": (True, True, False),
        "back to servers alone": (False, True, True),
        "trained since": (True, False, True),
    }.values(),
)
def test_a_chief_that_comes_back_does_not_set_what_others_have_trained(
    others_train, has_come_back, passes, caplog
):
    """Its script loads weights before `fit`, as it did when all began."""
    begun = fit_progress.begun(1) * others_train
    worker, done = Worker(0, table(begun, begun, begun)), []
    worker.runtime.has_come_back = lambda: has_come_back
    decisions = worker.chief_decisions
    decisions._values.take_over = lambda: done.append(1)
    # Places are of steps: the others' first one is made.
    place = (0, 1) if others_train else (0, 0)
    decisions._turns.position = lambda number: place
    weight = types.SimpleNamespace(role=Role.PARAMETER, name="kernel")
    assert decisions.before_write(weight) == passes
    assert ("'kernel' was assigned by a chief" in caplog.text) != passes
    decisions._tell_begun(worker.begin(1))
    # Its own steps begin with what the servers have.
    assert len(done) == (not passes)


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
    worker.runtime.show_ahead = show_ahead
    worker.chief_decisions._tell_begun(worker.begin(2))
    assert done == ["ahead"]


@pytest.mark.parametrize(("written", "follows"), [(0, 0), (1, 0), (2, 1)])
def test_own_weights_follow_what_the_chief_has_set(written, follows):
    """With local steps whose workers go on from weights of their own."""
    word = fit_progress.Word(fit_progress.begun(2), written=written)
    row = Member("chief", MemberState.ALIVE, 0.0, 0, word=word)
    worker, done = Worker(1, [row]), []
    worker.runtime.pull = lambda: done.append("pull")
    worker.runtime.show_ahead = lambda: None
    worker.runtime.local = types.SimpleNamespace(
        adopt_given=lambda: done.append("adopt")
    )
    worker.chief_decisions._tell_begun(worker.begin(2))
    assert done == ["pull", *["adopt"] * follows]


def test_the_chief_tells_that_it_has_set_weights_once():
    """Others' own weights follow; not what it sets before its later steps."""
    worker = Worker(0, table(*[fit_progress.closed(9)] * 3))
    worker.runtime.pull = lambda: None
    worker.runtime.show_ahead = lambda: None
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
