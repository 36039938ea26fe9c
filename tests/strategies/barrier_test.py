"""Barriers and the end of training: who is waited for, by table of members."""

import dataclasses
import functools
import types

import keras
import pytest
import tensorflow as tf

from tests import nightly
import tfdist
from tfdist import private_keras_calls
from tfdist import running_fit
from tfdist.cluster import fit_progress
from tfdist.cluster import member_table
from tfdist.cluster import termination
from tfdist.cluster import waiting
from tfdist.cluster.member_table import Member
from tfdist.cluster.member_table import MemberState
from tfdist.strategies import training


class Strategy(training.TrainingMixin):
    """A strategy of worker 0 whose worker 1 has been silent for a while."""

    def __init__(self, silent_for):
        self.reads = 0
        self.rows = rows = [
            Member("/job:worker/task:0", MemberState.ALIVE, 0.0, 1),
            Member("/job:worker/task:1", MemberState.ALIVE, silent_for, 0),
        ]
        there = [rows[0], Member(rows[1].name, MemberState.FINISHED, 0.0, 1)]

        def read():
            self.reads += 1
            return rows if self.reads == 1 else there

        self._expected = termination.Expected(2, 60.0)
        self._membership = types.SimpleNamespace(tell=lambda: None, read=read)
        self._runtime = types.SimpleNamespace(
            call=lambda function: function(),
            wait=functools.partial(
                waiting.wait_while_it_gets_on,
                stalled_after=lambda: 600.0,
                progress=lambda: [0],
            ),
        )


def test_who_is_lost_is_not_waited_for_as_soon_as_servers_say_so(monkeypatch):
    """One clock for servers and barriers, read when it is asked for."""
    monkeypatch.setattr(member_table, "LOST_AFTER_SECONDS", 15.0)
    for silent_for, reads in ((16.0, 1), (14.0, 2)):
        strategy = Strategy(silent_for)
        strategy._meet(lambda member: member.arrivals > 0, "to come")
        assert strategy.reads == reads


@pytest.mark.parametrize(
    ("reached", "batch", "waits"),
    {
        "trains": (fit_progress.begun(2), 3, True),
        "has ended": (fit_progress.ended(2), 3, True),
        "was interrupted": (fit_progress.closed(2), 3, False),
        "before its first step": (fit_progress.closed(2), 0, True),
        "is in its next call": (fit_progress.begun(3), 0, False),
    }.values(),
)
@pytest.mark.parametrize("in_fit", [True, False])
def test_the_end_of_a_call_does_not_wait_for_who_was_interrupted(
    reached, batch, waits, in_fit
):
    """Whose script may do something else for long, as in a notebook."""
    strategy, fits = Strategy(0.0), fit_progress.Fits()
    word = fit_progress.Word(reached, batch=batch)
    strategy.rows[1] = dataclasses.replace(strategy.rows[1], word=word)
    strategy._membership.fits = fits
    strategy._membership.arrive = lambda: 1
    strategy._runtime.coordination = types.SimpleNamespace(come_back=bool)
    strategy._runtime.pull = bool

    def fit():
        frame = private_keras_calls.current_frame()
        fits.watch(running_fit.RunningFit(frame), 2)
        fits.tell(reached=fit_progress.begun(2))
        if in_fit:
            strategy._wait_for_end()

    fit()
    if not in_fit:
        strategy._wait_for_end()
    assert strategy.reads == 1 + (waits or not in_fit)


@pytest.mark.parametrize("has_trained", [False, True])
def test_a_barrier_waits_for_the_same_call_of_the_others(has_trained):
    """They may all have come to the end of training in a callback before."""
    strategy, calls, reads = tfdist.AsyncStrategy(), [], []
    with strategy.scope():
        keras.layers.Dense(1).build([None, 1])

    def call_barrier():
        calls.append(None)
        return len(calls)

    def read():
        reads.append(None)
        counts = len(calls), len(reads) // 2
        return [
            Member(name, MemberState.ALIVE, 0.0, arrivals=7, barriers=count)
            for name, count in zip("ab", counts, strict=True)
        ]

    strategy._membership = types.SimpleNamespace(
        arrive=lambda: 7, call_barrier=call_barrier, tell=bool, read=read
    )
    for called in (1, 2, 3):
        if has_trained:
            strategy._runtime._settled_at = None
        strategy.barrier()
        assert len(reads) == 2 * called
    # First values are given when training begins: a checkpoint may have others.
    assert bool(strategy._runtime.committed) == has_trained


def test_an_evaluator_under_a_launcher_waits_for_its_word(
    monkeypatch, tmp_path
):
    """A worker that has ended with `sys.exit(1)` is started again."""
    strategy = Strategy(0.0)
    finished = MemberState.FINISHED
    rows = [Member("/job:worker/task:0", finished, 0.0, 1)]
    strategy._membership = types.SimpleNamespace(read=lambda: rows)
    strategy._connected_at = strategy._start_timeout = 0.0
    strategy._cluster = types.SimpleNamespace(initial_workers=None)
    assert strategy.training_is_over()
    monkeypatch.setenv("TFDIST_END_FILE", str(tmp_path / "end"))
    assert not strategy.training_is_over()
    (tmp_path / "end").touch()
    assert strategy.training_is_over()


@pytest.mark.parametrize("eagerly", nightly.also([True], [False]))
def test_who_has_trained_without_an_update_comes_to_its_end(eagerly):
    """Others, who have exchanged theirs, wait for it."""
    strategy, meetings = tfdist.AsyncStrategy(), []
    with strategy.scope():
        layer = keras.layers.Dense(1)
        layer.build([None, 1])
        optimizer = keras.optimizers.SGD(gradient_accumulation_steps=4)
        optimizer.build(layer.trainable_variables)
    strategy._meet = lambda *_: meetings.append(None)
    strategy._membership = types.SimpleNamespace(arrive=lambda: 1)

    def train():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.ones([1, 1])))
        weights = layer.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    def evaluate():
        layer(tf.ones([1, 1]))

    def by_hand():
        layer.kernel.assign_sub(tf.ones([1, 1]))

    steps = evaluate, train, evaluate, train, by_hand
    traced = functools.cache(tf.function)
    for step, met in zip(steps, (0, 1, 1, 2, 3), strict=True):
        strategy.run(step if eagerly else traced(step))
        strategy.await_end_of_training()
        assert len(meetings) == met
    assert strategy.journal.count == 0
