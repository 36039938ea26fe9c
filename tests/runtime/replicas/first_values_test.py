"""What a chief gives to servers of which some are empty."""

import types

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.runtime.replicas import replica_sync
from tfdist.runtime.variables import variable_list


def trained():
    """A store whose model has momentum, after a few steps."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    x = np.ones([8, 3], "float32")
    model.fit(x, x[:, :2], batch_size=2, verbose=0)
    return strategy._store, model


def on_server(store, variable, build):
    """What `build` builds with the handle of a variable on its server."""

    @tf.function(autograph=False)
    def call():
        return build(store.handle(variable, variable.shard, None))

    return call()


def held(store):
    """What the server holds, by name."""
    return {
        v.name: on_server(
            store,
            v,
            lambda handle, v=v: tf.raw_ops.ReadVariableOp(
                resource=handle, dtype=v.dtype
            ),
        ).numpy()
        for v in store.variables
    }


def lose(store, variable):
    """Takes a variable's value from its server."""

    def build(handle):
        tf.raw_ops.DestroyResourceOp(resource=handle)

    on_server(store, variable, build)


def joined(store, orphans):
    """The traffic of a chief that has come back, with first values."""
    for variable in store.variables:
        for replica in (variable, variable.pulled):
            if replica is not None:
                value = tf.fill(variable.shape, variable.dtype.max)
                replica.assign_replica(value)
    store.recovery = types.SimpleNamespace(
        wait_until_settled=lambda is_chief, timeout: orphans,
        call=lambda function, *args: function(*args),
    )
    return replica_sync.Synchronizer(store, is_chief=True, timeout=1.0)


def commit_in_two_parts(store, synchronizer, first):
    """As `compile` and `fit` do, with the model's and the optimizer's."""
    variables = list(store.variables)
    store.variables = variable_list.VariableList(variables[:first])
    synchronizer.commit()
    for variable in variables[first:]:
        store.variables.append(variable)
    synchronizer.commit()


def test_what_nobody_restores_is_filled_and_nothing_else():
    store, model = trained()
    before = held(store)
    lost = {v.name for v in store.variables if "kernel" in v.name}
    assert len(lost) == 2
    for variable in store.variables:
        if variable.name in lost:
            lose(store, variable)
    synchronizer = joined(store, orphans=True)
    commit_in_two_parts(store, synchronizer, len(model.weights))
    after = held(store)
    for variable in store.variables:
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
    assert synchronizer.held() == len(store.variables)
    assert synchronizer.versions() == [4]
