"""A run in this process, whose server loses what tests take from it."""

import types

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.runtime.replicas import replica_sync
from tfdist.runtime.variables import variable_list


def trained(optimizer=None):
    """A runtime after a few steps; its model has momentum by default."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(
            optimizer or keras.optimizers.SGD(0.1, momentum=0.9), "mse"
        )
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


def put(runtime, variable, value):
    """Puts a value onto a variable's server."""

    def build(handle):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    on_server(runtime, variable, build)


def put_version(store, number):
    """The server takes itself to have applied so many updates."""

    @tf.function(autograph=False)
    def call():
        store.counter("version", 0).set(number)

    call()


def lose(runtime, variable):
    """Takes a variable's value from its server."""

    def build(handle):
        tf.raw_ops.DestroyResourceOp(resource=handle)

    on_server(runtime, variable, build)


def joined(runtime, may_lack, is_chief=True):
    """The traffic of a worker that has come back, with first values."""
    for variable in runtime.store.variables:
        for replica in (variable, variable.pulled):
            if replica is not None:
                value = tf.fill(variable.shape, variable.dtype.max)
                replica.assign_replica(value)
    runtime.recovery = types.SimpleNamespace(
        wait_until_settled=lambda is_chief, timeout: may_lack,
        call=lambda function, *args: function(*args),
    )
    return replica_sync.Synchronizer(runtime, is_chief=is_chief, timeout=60.0)


def commit_in_two_parts(runtime, synchronizer, first):
    """As `compile` and `fit` do, with the model's and the optimizer's."""
    variables = list(runtime.store.variables)
    runtime.store.variables = variable_list.VariableList(variables[:first])
    synchronizer.commit()
    for variable in variables[first:]:
        runtime.store.variables.append(variable)
    synchronizer.commit()


def lose_named(store, name):
    """Takes a resource from the server, by its short name."""
    dtype = store.known[0, store.name_of(name)]

    @tf.function(autograph=False)
    def call():
        tf.raw_ops.DestroyResourceOp(
            resource=store.resource(0, name, dtype, None),
            ignore_lookup_error=True,
        )

    call()


def lose_all_but(store, kept):
    """Leaves on the server what a snapshot has that knew of `kept`.

    Args:
      store: The `ParameterStore`.
      kept: Some of `store.known`.
    """
    for shard, name in list(store.known):
        if (shard, name) not in kept:
            lose_named(store, store.short_name(name))


def short_names(runtime):
    """The names of what a worker tells servers to keep, in their order."""
    return [runtime.store.short_name(name) for _, name in runtime.store.known]


# What a heartbeat told of was all before the one or the other.
