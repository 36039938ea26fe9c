"""What of a model one server holds, as pairs of variable and piece."""

from tfdist.parameter_server import transfer
from tfdist.parameter_server.section import read_replica


def held_by(store, shard, variables):
    """Which of `variables` a server holds, or which pieces of them.

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
