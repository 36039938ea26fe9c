"""Models of one process that nobody uses any more."""

import gc
import types
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
import tfdist
from tfdist import cluster
from tfdist.cluster import member_table
from tfdist.runtime.variables import unused_models
from tfdist.runtime.variables.variables import ReplicaVariable

ROWS = np.ones([16, 6], "float32")


def build(strategy, activation="relu"):
    """A compiled model with slots and other state."""
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(5, activation=activation),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def live_one(strategy, **kwargs):
    """A model from its beginning to its end."""
    model = build(strategy, **kwargs)
    model.fit(ROWS, ROWS[:, :1], batch_size=4, verbose=0)
    handles = [v.value.local_handle for v in model.variables]
    del model
    keras.backend.clear_session()
    gc.collect()
    return handles


def held(runtime):
    """How many of the variables that were made the server has a value of."""

    @tf.function(autograph=False)
    def count():
        return [
            tf.raw_ops.VarIsInitializedOp(
                resource=tf.raw_ops.VarHandleOp(
                    dtype=dtype,
                    shape=None,
                    shared_name=runtime.store.name_of(f"{kind}/{ordinal}"),
                )
            )
            for kind, dtype in (
                ("variable", tf.float32),
                ("signature", tf.string),
            )
            for ordinal in range(len(runtime.store.variables))
        ]

    return sum(map(bool, count()))


def things():
    """Of this process: variables of strategies, and graphs of functions."""
    gc.collect()
    kinds = [type(thing).__name__ for thing in gc.get_objects()]
    return kinds.count(ReplicaVariable.__name__), kinds.count("FuncGraph")


STRATEGIES = {
    "async": tfdist.AsyncStrategy,
    "dcasgd": tfdist.DCASGDStrategy,
    "sync": lambda: tfdist.BackupWorkersStrategy(0),
    "diloco": lambda: tfdist.DiLoCoStrategy(period=3),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["async", "dcasgd", "sync", "diloco"])
def test_each_model_leaves_what_the_one_before_has_left(name):
    strategy = STRATEGIES[name]()
    runtime = strategy._runtime
    found = []
    for _ in range(5):
        live_one(strategy)
        found.append((things(), len(runtime.store.known), held(runtime)))
    assert found[-1] == found[-2] == found[-3]
    made = len(runtime.store.variables)
    gc.collect()
    strategy.commit()
    gc.collect()
    strategy.commit()
    assert list(runtime.store.variables) == []
    assert held(runtime) == 0
    # Positions are not used again, nor what was counted forgotten.
    assert len(runtime.store.variables) == made
    assert strategy.updates_applied() == [runtime.journal.count]
    counts = strategy.push_counts()
    assert counts["applied"] == [counts["pushed"]] == [runtime.journal.begun]
    (of_worker,) = strategy.gradient_counts().values()
    assert of_worker["accepted"] == counts["pushed"]
    freed = [
        n
        for _, n in runtime.store.known
        if unused_models.owners_of(runtime.store.short_name(n))
    ]
    assert freed == []


@pytest.mark.nightly
def test_models_are_freed_whether_they_were_trained_or_not():
    strategy = tfdist.AsyncStrategy()
    never_trained = build(strategy)
    del never_trained
    gc.collect()
    # Its gradient is one of those that TensorFlow registers for good, with
    # the function; replicas are emptied all the same.
    handles = live_one(strategy, activation="silu")
    strategy.commit()
    assert strategy.updates_applied() == [4]
    assert list(strategy._runtime.store.variables) == []
    sizes = [
        tf.size(tf.raw_ops.ReadVariableOp(resource=h, dtype=tf.float32))
        for h in handles
        if tf.raw_ops.VarIsInitializedOp(resource=h)
    ]
    assert not any(int(size) > 5 for size in sizes)


@pytest.mark.nightly
def test_a_model_beside_one_that_is_freed_stays_as_it_is():
    strategy = tfdist.AsyncStrategy()
    other, twin = build(strategy), build(strategy)
    twin.set_weights(other.get_weights())
    for model in (other, twin):
        model.fit(ROWS, ROWS[:, :1], batch_size=4, shuffle=False, verbose=0)
    del model, other
    live_one(strategy)
    strategy.commit()
    weights = twin.get_weights()
    strategy.pull()
    for before, after in zip(weights, twin.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert len(list(strategy._runtime.store.variables)) == len(
        [v for v in twin.variables if v.value.role.is_on_server]
    ) + sum(v.value.role.is_on_server for v in twin.optimizer.variables)
    state = strategy.state.read()
    assert state.header["variables"].count(None) == len(
        strategy._runtime.store.variables
    ) - len(list(strategy._runtime.store.variables))
    twin.fit(ROWS, ROWS[:, :1], batch_size=4, verbose=0)
    assert int(twin.optimizer.iterations.numpy()) == 8
    strategy.state.restore(state)
    for before, after in zip(weights, twin.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert int(twin.optimizer.iterations.numpy()) == 4


@pytest.mark.nightly
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_step_outlives_models_that_were_there_when_it_was_traced(name):
    strategy = STRATEGIES[name]()
    other = build(strategy)
    other.fit(ROWS, ROWS[:, :1], batch_size=4, verbose=0)
    model = build(strategy)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)

    def train():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(ROWS, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients)

    step = tf.function(lambda: strategy.run(train))

    @tf.function
    def steps(times):
        for _ in range(times):
            step()

    steps(1)
    del other
    keras.backend.clear_session()
    gc.collect()
    strategy.commit()
    # Another function that calls the step, which is not traced again.
    steps(2)
    assert int(model.optimizer.iterations) == 3


@pytest.mark.nightly
def test_what_all_others_have_freed_is_refused():
    strategy = tfdist.AsyncStrategy()
    model = build(strategy)
    strategy.commit()
    strategy._runtime.unused_models.give_up(
        list(strategy._runtime.store.variables)
    )
    with pytest.raises(tfdist.ModelFreedError, match="started again"):
        model.evaluate(ROWS, ROWS[:, :1], verbose=0)
    with pytest.raises(tfdist.ModelFreedError, match="the next model"):
        model.fit(ROWS, ROWS[:, :1], verbose=0)
    del model
    # The next one is the others' again.
    live_one(strategy)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", nightly.also(["diloco"], ["sync", "async", "dcasgd"])
)
def test_nothing_is_left_of_a_strategy_that_nobody_uses(name):
    strategy = STRATEGIES[name]()
    model = build(strategy)
    model.fit(ROWS, ROWS[:, :1], batch_size=4, verbose=0)
    strategy.push_counts()
    left = weakref.ref(strategy), weakref.ref(strategy._runtime)
    del model, strategy
    gc.collect()
    assert [thing() for thing in left] == [None, None]


def test_who_is_unknown_to_a_server_started_again_may_be_there(monkeypatch):
    now = 0.0
    monkeypatch.setattr(unused_models.time, "monotonic", lambda: now)
    config = cluster.ClusterConfig(
        {"ps": ("a:1",), "worker": ("b:1", "c:1")}, "worker", 0
    )
    runtime = types.SimpleNamespace(store=None)
    found = unused_models.UnusedModels(runtime, config, patience=300.0)
    unknown = member_table.Member(
        "c", member_table.MemberState.UNKNOWN, float("inf"), 0
    )
    assert found._may_come_back(1, unknown)
    now = 301.0
    assert not found._may_come_back(1, unknown)
    found.free_again({1}, set())
    assert not found._may_come_back(1, unknown)
    found.free_again({0, 1}, set())
    assert found._may_come_back(1, unknown)


@pytest.mark.nightly
def test_what_snapshots_bring_back_is_freed_again(monkeypatch):
    strategy = tfdist.AsyncStrategy()
    live_one(strategy)
    strategy.commit()
    found, built = strategy._runtime.unused_models, []
    assert found._freed
    monkeypatch.setattr(
        found, "_build_destroy", lambda named, _: built.append(named)
    )
    # All that was ever freed: not for nothing.
    found.free_again({0}, set())
    assert not built
    found.free_again({0}, {0})
    assert built == [found._freed]


@pytest.mark.nightly
def test_tensorflow_does_not_warn_of_a_program_with_many_strategies(caplog):
    for _ in range(6):
        strategy = tfdist.AsyncStrategy()
        build(strategy)
        strategy.commit()
    assert "retracing" not in caplog.text
