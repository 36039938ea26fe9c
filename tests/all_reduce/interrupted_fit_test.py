"""Ctrl-C while this worker and others do something together."""

import keras
import numpy as np
import pytest

from tests.all_reduce import programs
from tests.all_reduce.ctrl_c import handler
from tests.all_reduce.ctrl_c import interrupting
import tfdist
from tfdist.all_reduce import lane as lane_lib
from tfdist.all_reduce.consistency import Moment

__all__ = ["handler"]

FOLLOW = "follow"


@pytest.fixture
def trained():
    """A strategy, and a model that has been in `fit`."""
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model = programs.linear(
            keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)
        )
    fit(model)
    return strategy, model


def fit(model):
    model.fit(programs.batches(np.ones(1)), verbose=0)


def test_a_step_of_others_is_taken_before_ctrl_c(monkeypatch, trained):
    strategy, model = trained
    engine, seen = strategy._engine, []
    monkeypatch.setattr(
        engine.collectives,
        "call",
        interrupting(engine.collectives.call, seen, FOLLOW, 1),
    )
    lanes = engine.lanes_of(model) * 2
    with pytest.raises(KeyboardInterrupt):
        engine.follow(lanes, present=1.0, gradients=1.0)
    # Also that of another optimizer.
    assert int(model.optimizer.iterations) == 1 + 2


def test_an_eager_step_is_taken_before_ctrl_c():
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model = programs.linear(run_eagerly=True)
    fit(model)
    (lane,) = strategy._engine.lanes_of(model)
    lane._reduce_eagerly = interrupting(lane._reduce_eagerly, [], FOLLOW, 1)
    with pytest.raises(KeyboardInterrupt):
        fit(model)
    assert int(model.optimizer.iterations) == 2
    assert programs.weight_of(model) == -2.0


# All meet in the beginning. They follow each other to the end of the epoch, of
# its callbacks, and of all epochs; then they tell of averages, compare weights,
# and take the chief's.
END = [Moment.END_OF_FIT, Moment.END_OF_FIT, Moment.AFTER_FIT]
ALL = [Moment.FIT, *[FOLLOW] * 3, *END]


def interrupted(monkeypatch, engine, number):
    """Lets Ctrl-C come at one of what all workers do together.

    Args:
        monkeypatch: of pytest.
        engine: the `Engine`.
        number: of it, from 1.

    Returns:
        A list to which all that is added.
    """
    seen = []
    for owner, method, name in (
        (lane_lib.Lane, "follow", FOLLOW),
        (engine.consistency, "meet", None),
    ):
        function = getattr(owner, method)
        monkeypatch.setattr(
            owner, method, interrupting(function, seen, name, number)
        )
    return seen


@pytest.mark.parametrize(
    ("number", "right"),
    [
        # A step is taken here, and those of others are followed.
        (1, [Moment.FIT, FOLLOW, *END]),
        *((number, ALL) for number in range(4, 8)),
    ],
)
def test_ctrl_c_leaves_out_nothing_that_others_wait_for(
    monkeypatch, trained, number, right
):
    strategy, model = trained
    engine = strategy._engine
    seen = interrupted(monkeypatch, engine, number)
    with pytest.raises(KeyboardInterrupt):
        fit(model)
    engine.fits.end_if_abandoned()
    assert seen == right


def test_ctrl_c_before_the_first_step_of_all_leaves_steps_to_be_followed(
    monkeypatch,
):
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model = programs.linear()
    engine = strategy._engine
    seen = interrupted(monkeypatch, engine, 1)
    with pytest.raises(KeyboardInterrupt):
        fit(model)
    engine.fits.end_if_abandoned()
    assert seen == [Moment.FIT, FOLLOW, *END[1:]]


@pytest.mark.parametrize("number", [1, 2])
def test_ctrl_c_in_the_first_step_leaves_it_to_be_followed(monkeypatch, number):
    """All take the chief's values in it; then the others go on with it."""
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model = programs.linear()
    engine = strategy._engine
    seen = interrupted(monkeypatch, engine, number)
    with pytest.raises(KeyboardInterrupt):
        model.train_on_batch(np.ones([1, 1]), np.ones([1, 1]))
    strategy.barrier()
    assert seen == [Moment.STEP, Moment.STEP, FOLLOW, Moment.BARRIER]


@pytest.mark.nightly
@pytest.mark.parametrize("number", [1, 2])
def test_ctrl_c_in_a_barrier_leaves_no_comparison_to_the_others(
    monkeypatch, trained, number
):
    strategy, model = trained
    model.train_on_batch(np.ones([1, 1]), np.ones([1, 1]))
    engine = strategy._engine
    seen = interrupted(monkeypatch, engine, number)
    with pytest.raises(KeyboardInterrupt):
        strategy.barrier()
    assert seen == [FOLLOW, Moment.BARRIER]
    # All have met: it waits for nobody when its script ends.
    assert not engine.has_trained
