"""What a chief gives to servers of which some are empty."""

import types

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.runtime.replicas import replica_sync
from tfdist.runtime.variables import variable_list


def trained():
    """A runtime whose model has momentum, after a few steps."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    x = np.ones([8, 3], "float32")
    model.fit(x, x[:, :2], batch_size=2, verbose=0)
    return strategy._runtime, model


def on_server(runtime, variable, build):
    """What `build` builds with the handle of a variable on its server."""

    @tf.function(autograph=False)
    def call():
        return build(runtime.store.handle(variable, variable.shard, None))

    return call()


def held(runtime):
    """What the server holds, by name."""
    return {
        v.name: on_server(
            runtime,
            v,
            lambda handle, v=v: tf.raw_ops.ReadVariableOp(
                resource=handle, dtype=v.dtype
            ),
        ).numpy()
        for v in runtime.store.variables
    }


def lose(runtime, variable):
    """Takes a variable's value from its server."""

    def build(handle):
        tf.raw_ops.DestroyResourceOp(resource=handle)

    on_server(runtime, variable, build)


def joined(runtime, orphans):
    """The traffic of a chief that has come back, with first values."""
    for variable in runtime.store.variables:
        for replica in (variable, variable.pulled):
            if replica is not None:
                value = tf.fill(variable.shape, variable.dtype.max)
                replica.assign_replica(value)
    runtime.recovery = types.SimpleNamespace(
        wait_until_settled=lambda is_chief, timeout: orphans,
        call=lambda function, *args: function(*args),
    )
    return replica_sync.Synchronizer(runtime, is_chief=True, timeout=1.0)


def commit_in_two_parts(runtime, synchronizer, first):
    """As `compile` and `fit` do, with the model's and the optimizer's."""
    variables = list(runtime.store.variables)
    runtime.store.variables = variable_list.VariableList(variables[:first])
    synchronizer.commit()
    for variable in variables[first:]:
        runtime.store.variables.append(variable)
    synchronizer.commit()


def test_what_nobody_restores_is_filled_and_nothing_else():
    runtime, model = trained()
    before = held(runtime)
    lost = {v.name for v in runtime.store.variables if "kernel" in v.name}
    assert len(lost) == 2
    for variable in runtime.store.variables:
        if variable.name in lost:
            lose(runtime, variable)
    synchronizer = joined(runtime, orphans=True)
    commit_in_two_parts(runtime, synchronizer, len(model.weights))
    after = held(runtime)
    for variable in runtime.store.variables:
        if variable.name in lost:
            expected = np.full(variable.shape, variable.dtype.max)
        else:
            expected = before[variable.name]
        np.testing.assert_array_equal(
            after[variable.name], expected, variable.name
        )
        # Its replica as well.
        np.testing.assert_array_equal(
            variable.read_value().numpy(), expected, variable.name
        )
    assert synchronizer.held() == len(runtime.store.variables)
    assert synchronizer.versions() == [4]


def lose_gradient_counts(runtime):
    """A server's snapshot may be from before workers knew of them."""

    @tf.function(autograph=False)
    def call():
        handle = runtime.gradient_counts.handle(0)
        tf.raw_ops.DestroyResourceOp(resource=handle)

    call()


def test_lost_counts_of_gradients_are_filled_and_no_others():
    runtime, model = trained()
    synchronizer = joined(runtime, orphans=True)
    (before,) = runtime.gradient_counts.read().values()
    assert before["accepted"] == 4
    commit_in_two_parts(runtime, synchronizer, len(model.weights))
    assert list(runtime.gradient_counts.read().values()) == [before]
    lose_gradient_counts(runtime)
    synchronizer = joined(runtime, orphans=True)
    commit_in_two_parts(runtime, synchronizer, len(model.weights))
    (after,) = runtime.gradient_counts.read().values()
    assert after["accepted"] == 0
    # The next gradient finds what it adds to.
    x = np.ones([2, 3], "float32")
    model.train_on_batch(x, x[:, :2])
    (after,) = runtime.gradient_counts.read().values()
    assert after["accepted"] == 1
