"""Pairs of variable and piece that one server holds of a model."""

from tfdist.runtime.variables import transfer
from tfdist.runtime.variables.server_scope import read_replica
from tfdist.runtime.variables.variables import Role


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


def values_here(copies):
    """Builds the reading of this worker's values of copies, a list.

    Of a step counter without the steps that have not been exchanged yet.

    Args:
      copies: From `held_by`.
    """
    values = []
    for variable, piece in copies:
        is_counter = variable.role is Role.ITERATIONS
        value = read_replica(variable.pulled if is_counter else variable)
        values.append(value if piece is None else piece.of(value))
    return values


def build_send(store, shard, copies):
    """Builds the way of this worker's replicas to a server.

    Args:
      store: The `ParameterStore`.
      shard: Number of the server.
      copies: From `held_by`.

    Returns:
      List of tensors there, one for each copy.
    """
    return transfer.move(
        values_here(copies),
        source=store.worker_device,
        target=store.devices[shard],
    )
