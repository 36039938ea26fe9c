"""Where a worker that was started again goes on, by tables of the test's."""

import functools
import types

import keras
import pytest
import tensorflow as tf

from tfdist import callbacks
from tfdist.cluster import fit_progress
from tfdist.cluster import waiting
from tfdist.cluster.fit_progress import OVER
from tfdist.cluster.member_table import Member
from tfdist.cluster.member_table import MemberState
from tfdist.runtime.keras_hooks import fit_position
from tfdist.runtime.keras_hooks import fit_turns

NAMES = ("chief", "one", "two")
CALL = 1
_CLOSED = fit_progress.closed(CALL)


def row(
    epoch=0,
    batch=0,
    *,
    first_epoch=0,
    state=MemberState.ALIVE,
    reached=None,
    came_to=CALL,
    completed=0,
    silent=0.0,
):
    """A worker that is there in the call, or has come as far as `reached`."""
    word = fit_progress.Word(
        reached=fit_progress.begun(CALL) if reached is None else reached,
        epoch=epoch,
        batch=batch,
        first_epoch=first_epoch,
        came_to=came_to,
        completed=completed,
    )
    return Member("a worker", state, silent, 0, 1.0, word)


def never():
    return Member("a worker", MemberState.UNKNOWN, float("inf"), 0)


def turns(worker, rows, former, initial_workers=3):
    """The `FitTurns` of a worker, with a table."""
    membership = types.SimpleNamespace(
        fits=fit_progress.Fits(),
        read=lambda: rows,
        former=former,
        arrivals=0,
        is_awaited_by=lambda member: member.arrivals > membership.arrivals,
        count_along=lambda member: setattr(
            membership, "arrivals", member.arrivals
        ),
    )
    config = types.SimpleNamespace(
        worker_names=NAMES, worker_id=worker, initial_workers=initial_workers
    )
    return fit_turns.FitTurns(
        types.SimpleNamespace(call=lambda function: function()),
        membership,
        config,
        wait=functools.partial(
            waiting.wait_while_it_gets_on,
            stalled_after=lambda: 0.3,
            progress=lambda: [0],
        ),
        worker_timeout=10.0,
        start_timeout=60.0,
    )


@pytest.mark.parametrize(
    "worker, rows, former, expected",
    {
        "where the chief is": (
            1,
            [row(4, 7), row(), row(9, 9)],
            row(2, 1),
            (4, 7),
        ),
        "no less than it had done": (
            1,
            [row(4, 7), row(), row()],
            row(5, 1),
            (5, 1),
        ),
        "where the others are without the chief": (
            1,
            [row(4, 7, silent=11.0), row(), row(6, 2)],
            row(2, 1),
            (6, 2),
        ),
        "the chief itself": (
            0,
            [row(), row(3, 1), row(3, 2)],
            row(2, 1),
            (3, 2),
        ),
        "alone": (1, [never(), row(), never()], row(2, 1), (2, 1)),
        "the chief has ended it": (
            1,
            [row(reached=fit_progress.ended(CALL)), row(), row()],
            row(2, 1),
            OVER,
        ),
        "the chief has finished": (
            1,
            [
                row(
                    state=MemberState.FINISHED,
                    reached=fit_progress.closed(CALL),
                ),
                row(),
                never(),
            ],
            row(2, 1),
            OVER,
        ),
        "the chief has not begun": (
            1,
            [row(reached=0), row(), row()],
            row(reached=0),
            (0, 0),
        ),
        "the chief has been started again and has not begun": (
            1,
            [row(reached=0), row(), row(6, 2)],
            row(2, 1),
            (6, 2),
        ),
        "an exception has ended it here alone": (
            1,
            [row(4, 7), row(), row()],
            row(2, 1, state=MemberState.FAILED, reached=_CLOSED),
            (4, 7),
        ),
        "an exception has ended it here, and then nothing": (
            1,
            [row(1, 7), row(), row()],
            row(2, 1, reached=_CLOSED),
            (2, 1),
        ),
        "it was ended here and elsewhere": (
            1,
            [row(reached=_CLOSED), row(), row()],
            row(2, 1, state=MemberState.FAILED, reached=_CLOSED),
            OVER,
        ),
        "a later call was begun here": (
            1,
            [row(4, 7), row(), row()],
            row(reached=fit_progress.begun(CALL + 1)),
            OVER,
        ),
        "a later call was made here, and then nothing": (
            1,
            [row(4, 7), row(), row()],
            row(reached=_CLOSED, came_to=CALL + 1),
            OVER,
        ),
        "late for the first time": (
            1,
            [row(4, 7), never(), row()],
            never(),
            (0, 0),
        ),
        "not expected": (2, [row(4, 7), row(), never()], never(), (4, 7)),
        "not expected, and the chief has not begun": (
            2,
            [row(reached=0), row(4, 7), never()],
            never(),
            (4, 7),
        ),
    }.values(),
)
def test_where_a_worker_goes_on(worker, rows, former, expected):
    found = turns(worker, rows, former, initial_workers=2)
    assert found.position(CALL) == expected


class Frame:
    """Of a call of `fit` in its first step."""

    def __init__(
        self, model, callbacks=None, initial_epoch=0, epoch=0, epochs=9
    ):
        self.f_locals = {
            "self": model,
            "epochs": epochs,
            "callbacks": callbacks,
            "initial_epoch": initial_epoch,
            "epoch": epoch,
        }


def position(*, former=None, chief=(4, 7)):
    """A `FitPosition` of a worker that was started again."""
    rows = [row(*chief), row(), row()]
    made = turns(1, rows, row() if former is None else former)
    return fit_position.FitPosition(made, made._fits)


def begun(model, made, size=10, skips=True, **frame):
    """What is left out of the data; the epoch at which Keras begins."""
    made.watch(Frame(model, **frame), CALL)
    return made.begin(model, size, skips), model._initial_epoch


def test_epochs_and_batches_before_the_position_are_left_out():
    model, made = keras.Sequential(), position()
    assert begun(model, made) == ((4, 7), 4)
    made.begin_loop(Frame(model, epoch=4))
    # The next `fit` begins where the user says.
    assert model._initial_epoch is None
    made.end_batch(0)
    assert made._fits.word.epoch == 4
    assert made._fits.word.batch == 8
    made.begin_epoch(5)
    made.end_batch(0)
    assert (made._fits.word.epoch, made._fits.word.batch) == (5, 1)


def test_data_that_cannot_be_left_out_begins_with_the_epoch():
    assert begun(keras.Sequential(), position(), skips=False) == ((4, 0), 4)


@pytest.mark.parametrize("left", [3, 0])
def test_what_is_left_of_an_epoch_is_not_taken_for_the_size_of_others(left):
    """Keras counts the batches of data of unknown size in the first epoch."""
    seen, made = [], position(chief=(4, 10 - left))
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    begun(model, made, size=0)

    def batches():
        for _ in range(left if len(seen) == 1 else 10):
            yield tf.ones([1, 1]), tf.ones([1, 1])

    spec = tf.TensorSpec([1, 1])
    data = tf.data.Dataset.from_generator(batches, output_signature=(spec,) * 2)

    class Counts(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            # A batch that was trained before has put the callbacks there.
            made.begin_epoch(epoch)
            if not seen:
                frame = types.SimpleNamespace(f_locals={"epoch": epoch})
                made.begin_loop(frame)
            seen.append(0)

        def on_train_batch_end(self, batch, logs=None):
            seen[-1] += 1

    model.fit(data, epochs=7, callbacks=[Counts()], verbose=0)
    assert seen == [left, 10, 10]


def test_an_epoch_of_which_nothing_is_left_is_left_out():
    model = keras.Sequential()
    assert begun(model, position(chief=(4, 10))) == ((5, 0), 5)


def test_data_is_left_out_from_the_users_first_epoch_on():
    model = keras.Sequential()
    assert begun(model, position(), initial_epoch=3) == ((1, 7), 4)
    assert begun(model, position(), initial_epoch=5) == ((-1, 7), 4)
    # Keras begins with the user's epoch where it is told 0; so does the data.
    made = position(chief=(0, 7))
    assert begun(model, made, initial_epoch=2) == ((0, 0), 2)
    assert made._fits.word.first_epoch == 2


def test_all_epochs_of_a_call_that_is_over_are_left_out_of_its_data():
    """A `PyDataset` that shuffles itself is what the next call has, too."""
    model, made = keras.Sequential(), position()
    made._turns.position = lambda number: OVER
    left_out, first = begun(model, made, initial_epoch=2, epochs=6)
    assert (left_out, made.is_over) == ((4, 0), True)
    assert first >= 6  # Keras trains on none.


def test_a_worker_that_is_there_for_the_first_time_leaves_nothing_out():
    model, made = keras.Sequential(), position(former=never())
    assert begun(model, made) == ((0, 0), None)


@pytest.mark.parametrize(
    "make, kinds",
    [
        (keras.callbacks.BackupAndRestore, (True, False)),
        (callbacks.ClusterCheckpoint, (False, True)),
    ],
)
def test_a_callback_that_resumes_is_not_interfered_with(tmp_path, make, kinds):
    model, made = keras.Sequential(), position()
    resumes = [make(tmp_path / "backup")]
    assert begun(model, made, callbacks=resumes) == ((0, 0), None)
    assert (made.reads_backup, made.reads_checkpoint) == kinds
    # It has resumed at the eighth epoch, as the others are told.
    made.begin_loop(Frame(model, epoch=7))
    word = made._fits.word
    assert (word.first_epoch, word.first_batch) == (7, 0)


@pytest.mark.parametrize("others_are_over", [False, True])
@pytest.mark.parametrize("reached", [fit_progress.ended(CALL), _CLOSED])
def test_of_a_call_whose_steps_it_had_made_no_epoch_is_left(
    tmp_path, reached, others_are_over
):
    """Though others are in it, and its callback has deleted what it wrote."""
    former = row(2, 7, reached=reached, completed=CALL)
    model, made = keras.Sequential(), position(former=former)
    if others_are_over:
        made._turns.position = lambda number: OVER
    callback = keras.callbacks.BackupAndRestore(tmp_path)
    # Before its last epoch the chief may have stopped it.
    left_out, first = begun(model, made, callbacks=[callback], size=0)
    assert left_out == (9, 0)
    assert first == (OVER[0] if others_are_over else 9)
    assert (made.is_over, made.is_completed) == (
        others_are_over,
        not others_are_over,
    )


def test_a_call_that_ends_while_a_backup_is_looked_for_is_over(tmp_path):
    """The chief deletes it then: this worker would train all epochs alone."""
    model, made = keras.Sequential(), position()
    callback = keras.callbacks.BackupAndRestore(tmp_path)
    assert begun(model, made, callbacks=[callback]) == ((0, 0), None)
    assert not made.look_again(CALL)
    assert not made.is_over
    made._turns.position = lambda number: OVER
    assert made.look_again(CALL)
    assert (made.is_over, made.passes) == (True, True)
    assert not made.look_again(CALL)


@pytest.mark.parametrize(
    "worker, others, is_over",
    {
        "is there": (0, {1: row()}, False),
        "has never been there": (0, {}, False),
        "was told to leave": (0, {1: row(state=MemberState.LEFT)}, False),
        "has died": (0, {1: row(silent=11.0)}, False),
        "has raised": (
            0,
            {1: row(state=MemberState.FAILED, reached=_CLOSED)},
            False,
        ),
        "the chief has died": (1, {0: row(silent=11.0)}, False),
        "has finished": (
            0,
            {1: row(state=MemberState.FINISHED, reached=_CLOSED)},
            True,
        ),
        "one has finished, one trains": (
            0,
            {1: row(state=MemberState.FINISHED, reached=_CLOSED), 2: row()},
            False,
        ),
        "one has finished, one was told to leave": (
            0,
            {
                1: row(state=MemberState.FINISHED, reached=_CLOSED),
                2: row(state=MemberState.LEFT),
            },
            True,
        ),
    }.values(),
)
def test_later_calls_are_over_only_where_others_have_finished(
    worker, others, is_over
):
    """Not where they are merely away."""
    rows = [row(4, 7) if k in others else never() for k in range(3)]
    made = turns(worker, rows, row(2, 1), initial_workers=2)
    made = fit_position.FitPosition(made, made._fits)
    made.watch(Frame(keras.Sequential()), CALL)
    assert made.goes_on
    for number, other in others.items():
        rows[number] = other
    made.watch(Frame(keras.Sequential()), CALL + 1)
    assert made.is_over is is_over


def waits(worker, tables, former=None):
    """Number of looks at the table before a worker begins to train."""
    looks = iter(tables)
    made = turns(worker, None, never() if former is None else former)
    seen = []
    made._membership.read = lambda: seen.append(0) or next(looks)
    made.wait_for_start()
    return len(seen)


def test_workers_begin_when_all_are_there():
    """One is not there, then it prepares its first step, then it makes it."""
    tables = [
        [row(0, 1), row(0, 1), never()],
        [row(0, 1), row(0, 1), row(reached=0)],
        [row(0, 1), row(0, 1), row()],
        [row(0, 1), row(0, 1), row(0, 1)],
    ]
    assert waits(0, tables) == 4
    assert waits(1, tables) == 4


def test_workers_begin_together_where_a_run_is_resumed():
    tables = [
        [row(5, 1, first_epoch=5), row(reached=0), row(5, 0, first_epoch=5)],
        [row(5, 1, first_epoch=5)] * 3,
    ]
    assert waits(0, tables) == 2
    assert waits(1, tables) == 2


def test_who_comes_when_others_train_does_not_wait():
    assert waits(2, [[row(0, 2), never(), row()]]) == 1


def test_who_was_started_again_does_not_wait():
    assert waits(1, [], former=row(2, 1)) == 0


def test_who_is_gone_is_not_waited_for():
    failed = row(reached=0, state=MemberState.FAILED)
    assert waits(0, [[row(0, 1), failed, row(silent=11.0, reached=0)]]) == 1


def test_nobody_waits_for_ever(caplog, monkeypatch):
    found = turns(0, [row(), never(), never()], never())
    found._start_timeout = 0.01
    found.wait_for_start()
    assert "one, two to begin to train as well" in caplog.text
    assert 'worker_start="independent"' in caplog.text


@pytest.mark.parametrize(
    "tables, words, expected",
    {
        "the chief is about to tell": (
            [row(reached=0), row(reached=0)],
            [None, "word"],
            "word",
        ),
        "it has told and then begun": ([row()], ["word"], "word"),
        "it has begun: a server has lost it": ([row()], [None], None),
        "it is gone": ([row(reached=0, silent=11.0)], [None], None),
    }.values(),
)
def test_what_the_chief_tells_at_the_beginning_is_waited_for(
    tables, words, expected
):
    made = turns(1, None, never())
    rows, left = iter(tables), list(words)
    made._membership.read = lambda: [next(rows), row(reached=0), never()]
    found = made.wait_for_word(
        CALL, lambda: left.pop(0) if len(left) > 1 else left[0]
    )
    assert found == expected
    assert len(left) == 1


def test_who_was_interrupted_as_it_waited_for_others_waits_again():
    """Else what it sets would mix with what the others still send."""
    made, looks = turns(0, [row(), row(), row()], never()), []

    def interrupted(condition, what):
        looks.append(condition())
        if len(looks) == 1:
            raise KeyboardInterrupt

    made._wait = interrupted
    with pytest.raises(KeyboardInterrupt):
        made.wait_for_others(CALL)
    made.wait_for_others(CALL)
    # It has met them.
    made.wait_for_others(CALL)
    assert looks == [False, False]


@pytest.mark.parametrize("other", [0, 1, 2])
def test_it_is_known_whether_others_have_made_a_call(other):
    """Begun or not; this worker's own do not count."""
    rows = [row(), row(), row()]
    made = turns(1, rows, never())
    assert made.others_have_call(CALL)
    assert not made.others_have_call(CALL + 1)
    rows[other] = row(reached=_CLOSED, came_to=CALL + 1)
    assert made.others_have_call(CALL + 1) is (other != 1)
