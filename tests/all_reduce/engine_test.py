"""The end of loops of the user's own, without a cluster."""

import gc

import keras
import pytest
import tensorflow as tf

from tests.all_reduce import programs
import tfdist
from tfdist.all_reduce import lane
from tfdist.all_reduce import tail


@pytest.mark.nightly
def test_nobody_follows_one_of_two_optimizers_where_the_other_is_freed(
    monkeypatch,
):
    # Another worker may have it still: there nobody follows.
    strategy = tfdist.AllReduceStrategy()
    engine = strategy._engine
    followed = []

    def follow(lanes, **mine):
        followed.append(lanes)
        return tail.Tail(over=1.0)

    monkeypatch.setattr(engine, "follow", follow)
    programs.one_step(strategy)
    kept = programs.one_step(strategy)
    gc.collect()
    assert len(engine._lanes) == 1
    strategy.barrier()
    assert followed == []
    del kept
    programs.one_step(strategy)
    strategy.barrier()
    assert len(followed) == 1


@pytest.mark.nightly
def test_what_a_step_without_an_optimizer_trains_is_freed():
    strategy = tfdist.AllReduceStrategy()

    def train_one():
        with strategy.scope():
            weight = tf.Variable(5.0)

        def step():
            with tf.GradientTape() as tape:
                loss = weight * weight
            weight.assign_sub(tape.gradient(loss, weight))

        strategy.run(step)

    for _ in range(3):
        train_one()
    gc.collect()
    # The last may be followed.
    assert len(strategy._engine._lanes) == 1


def test_settings_that_one_worker_may_follow_alone_are_told(monkeypatch):
    strategy = tfdist.AllReduceStrategy()
    engine = strategy._engine
    warnings = []
    monkeypatch.setattr(
        lane.logging, "warning", lambda text, *a: warnings.append(text % a)
    )
    with strategy.scope():
        optimizer = keras.optimizers.SGD(name="rule")
        variable = keras.Variable([1.0])
    strategy.run(optimizer.apply, ([tf.ones([1])], [variable]))
    (made,) = engine._lanes.values()
    for engine.num_workers, optimizer.weight_decay in ((1, 0.5), (2, 0.25)):
        assert not warnings
        for _ in range(2):
            made.follow_settings()
    (warning,) = warnings
    assert "optimizer 'rule' have changed" in warning


def test_the_chiefs_rates_are_those_of_optimizers_in_one_of_the_users_own():
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        fast = keras.optimizers.SGD(0.5)
        model = programs.linear(programs.Wrapper(fast))
    model.fit(programs.batches([1.0]), verbose=0)
    assert programs.weight_of(model) == -0.5
    (made,) = strategy._engine.lanes_of(model)
    rates = [rate.numpy() for rate in made._rates.variables]
    assert rates == [0.0, 0.5]  # The first one is never used.


def test_a_first_step_brings_what_no_step_has_used_yet(monkeypatch):
    """As the frozen part, or the target network, of a loop of one's own."""
    strategy = tfdist.AllReduceStrategy()
    consistency, found = strategy._engine.consistency, []
    adopt_others = consistency.adopt_others

    def adopt(moment, variables):
        found.append([variable.name for variable in variables])
        adopt_others(moment, variables)

    monkeypatch.setattr(consistency, "adopt_others", adopt)
    with strategy.scope():
        target = keras.layers.Dense(1, name="target", trainable=False)
        target.build([None, 1])
        keras.optimizers.SGD().build(target.weights)
        own = keras.Variable(0.0, trainable=False)
    kept = programs.one_step(strategy), programs.one_step(strategy)
    assert found == [[v.value.name for v in target.weights], []]
    del kept, own
