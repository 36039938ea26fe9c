"""Pairs of variable and piece that one server holds of a model."""

import tensorflow as tf

from tfdist.runtime.variables import transfer
from tfdist.runtime.variables.server_scope import read_replica


def held_by(store, shard, variables):
    """Those of `variables` that a server holds, or their pieces there.

    Args:
      store: The `ParameterStore`.
      shard: Number of the server.
      variables: List of `ReplicaVariable`.

    Returns:
      List of (`ReplicaVariable`, `Piece` or None).
    """
    return [
        (variable, piece)
        for variable in variables
        for holder, piece in store.copies_of(variable)
        if holder == shard
    ]


def primary_on(store, shard, variables):
    """As `held_by`, of what is read: a counter is held everywhere."""
    return [
        (variable, piece)
        for variable, piece in held_by(store, shard, variables)
        if piece is not None or variable.shard == shard
    ]


def build_send(store, shard, copies):
    """Builds the way of this worker's replicas to a server.

    Args:
      store: The `ParameterStore`.
      shard: Number of the server.
      copies: From `held_by`.

    Returns:
      List of tensors there, one for each copy.
    """
    values = [read_replica(variable) for variable, _ in copies]
    return transfer.move(
        [
            value if piece is None else piece.of(value)
            for (_, piece), value in zip(copies, values, strict=True)
        ],
        source=store.worker_device,
        target=store.devices[shard],
    )


def build_put_if_missing(store, shard, handle, value):
    """Builds: a server gets a value that it has not.

    Args:
      store: The `ParameterStore`.
      shard: Number of the server.
      handle: Of the resource there.
      value: Tensor there.

    Returns:
      Whether it had none, a scalar bool tensor.
    """
    device = store.devices[shard]

    def put():
        with tf.device(device):
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        return True

    with tf.device(device):
        known = tf.raw_ops.VarIsInitializedOp(resource=handle)
    return tf.cond(known, lambda: False, put)
