"""Calls of `fit` in a ring of this process alone, which is else a server."""

import contextlib
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tests.all_reduce import programs
from tests.all_reduce.ctrl_c import handler
from tests.all_reduce.ctrl_c import interrupting
import tfdist
from tfdist.all_reduce import collectives
from tfdist.all_reduce.consistency import Moment
from tfdist.strategies import construction

__all__ = ["handler"]


@pytest.fixture
def strategy(monkeypatch):
    """It averages every two steps, with nobody else."""
    monkeypatch.setattr(
        construction, "resolve", lambda method, config: method.resolve(1)
    )
    monkeypatch.setattr(construction.peers, "join", lambda *_: mock.Mock())
    monkeypatch.setattr(
        collectives, "of", lambda *_: collectives.NoCollectives()
    )
    return tfdist.ParameterAveragingStrategy(2, communication="ring")


def engine_of(strategy):
    """Its `RingEngine`."""
    return strategy._runtime.local._communication._engine


def linear(strategy):
    """See `programs`."""
    with strategy.scope():
        return programs.linear()


def fit(model, *callbacks, epochs=1):
    """Trains on four ones."""
    model.fit(
        programs.batches(np.ones(4)),
        epochs=epochs,
        verbose=0,
        callbacks=list(callbacks),
    )


def fail(*_, **__):
    """Ends a `fit`."""
    raise ZeroDivisionError


@pytest.mark.nightly
def test_a_model_that_a_callback_makes_has_values_at_the_end(strategy):
    model, copies = linear(strategy), []

    def copy(epoch, logs=None):
        with strategy.scope():
            copies.append(programs.linear())

    fit(model, programs.on(on_epoch_end=copy), epochs=2)
    assert programs.weight_of(model) == -8.0
    assert [programs.weight_of(one) for one in copies] == [0.0, 0.0]


@pytest.mark.nightly
def test_a_model_made_after_an_exception_is_none_of_that_fit(strategy):
    """The others read no values of it at the end of theirs."""
    model = linear(strategy)
    with contextlib.suppress(ZeroDivisionError):
        fit(model, programs.on(on_train_batch_end=fail))
    fits = engine_of(strategy).fits
    assert fits.has_abandoned
    other = linear(strategy)
    assert not fits.has_abandoned
    fit(other)
    assert programs.weight_of(model) == -1.0
    assert programs.weight_of(other) == -4.0


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["flush", "await_end_of_training"])
def test_a_callback_at_the_end_does_not_wait_for_who_will_not_come_there(
    strategy, monkeypatch, name
):
    """As a `ClusterMonitor`, beside a worker that an exception has ended."""
    model, engine, calls = linear(strategy), engine_of(strategy), []
    monkeypatch.setattr(engine, "end_steps", lambda: calls.append("steps"))

    def end(logs=None):
        calls.append("callback")
        getattr(strategy, name)()

    fit(model, programs.on(on_train_end=end))
    assert calls == ["callback"]
    assert programs.weight_of(model) == -4.0


@pytest.mark.nightly
def test_where_a_worker_is_gone_who_is_left_saves_the_last_exchange(
    strategy, monkeypatch
):
    model, engine = linear(strategy), engine_of(strategy)

    def lose(*_, **__):
        raise tf.errors.UnavailableError(None, None, "task:1 is gone")

    def lose_in_third(batch, logs=None):
        if batch == 2:
            lose()

    with pytest.raises(tf.errors.UnavailableError):
        fit(model, programs.on(on_train_batch_end=lose_in_third))
    monkeypatch.setattr(engine, "follow", lose)
    monkeypatch.setattr(engine._ring._collectives, "has_failed", True)
    assert programs.weight_of(model) == -2.0
    model.set_weights([np.array([[3.0]])])
    assert programs.weight_of(model) == 3.0


def test_each_barrier_meets_whatever_this_worker_has_done(
    strategy, monkeypatch
):
    """Others may have written a file that this worker is about to read."""
    model, consistency = linear(strategy), engine_of(strategy)._consistency
    met, meet = [], consistency.meet

    def met_at(moment, *numbers):
        met.append(moment)
        return meet(moment, *numbers)

    monkeypatch.setattr(consistency, "meet", met_at)

    def barrier(*args, logs=None):
        met.clear()
        strategy.barrier()
        assert Moment.BARRIER in met

    barrier()
    fit(model, programs.on(on_epoch_end=barrier, on_train_batch_end=barrier))
    assert programs.weight_of(model) == -4.0
    barrier()
    barrier()


@pytest.mark.nightly
def test_after_a_barrier_at_the_end_another_model_may_be_trained(strategy):
    model, other = linear(strategy), linear(strategy)
    x = np.ones([1, 1], "float32")

    def end(logs=None):
        strategy.barrier()
        for _ in range(2):
            other.train_on_batch(x, x)

    fit(model, programs.on(on_train_end=end))
    strategy.barrier()
    assert programs.weight_of(other) == -2.0


@pytest.mark.nightly
def test_a_callback_that_trains_at_the_end_leaves_no_step(strategy):
    """Its last one is exchanged as soon as the callback asks for it."""
    model, seen = linear(strategy), []
    x = np.ones([1, 1], "float32")

    def end(logs=None):
        for _ in range(3):
            model.train_on_batch(x, x)
        strategy.barrier()
        seen.append(programs.weight_of(model))

    fit(model, programs.on(on_train_end=end))
    assert seen == [-7.0]


def interrupted(monkeypatch, engine, number):
    """Lets Ctrl-C come at one of what all workers do together; lists it."""
    seen = []
    for owner, method, name in (
        (engine._ring, "call", "call"),
        (engine._consistency, "meet", None),
    ):
        function = getattr(owner, method)
        monkeypatch.setattr(
            owner, method, interrupting(function, seen, name, number)
        )
    return seen


@pytest.mark.nightly
@pytest.mark.parametrize("number", [1, 2, 3])
def test_ctrl_c_in_a_barrier_leaves_no_comparison_to_the_others(
    strategy, monkeypatch, number
):
    model, engine = linear(strategy), engine_of(strategy)
    fit(model)
    x = np.ones([1, 1], "float32")
    model.train_on_batch(x, x)
    seen = interrupted(monkeypatch, engine, number)
    with pytest.raises(KeyboardInterrupt):
        strategy.barrier()
    # It tells what it has freed, then compares, twice.
    assert seen == ["call", *[Moment.BARRIER] * 4]
    assert not engine.is_open()
    assert programs.weight_of(model) == -5.0


@pytest.mark.nightly
def test_ctrl_c_in_the_first_step_leaves_its_optimizer_there(
    strategy, monkeypatch
):
    """The others exchange its steps, in which this worker takes part."""
    model, engine = linear(strategy), engine_of(strategy)
    # They meet at the beginning of `fit`; then before the first step.
    seen = interrupted(monkeypatch, engine, 2)
    with pytest.raises(KeyboardInterrupt):
        fit(model)
    assert seen == [Moment.FIT, *[Moment.STEP] * 2]
    assert len(engine.local.inners) == 1
