"""Layout of variables on servers, in words that any process can read.

So that a process of another cluster can read them: codistillation.
"""

from tfdist.runtime.variables.variables import ReplicaVariable
from tfdist.runtime.variables.variables import Role


def describe(store, variables):
    """Says where variables lie, and what counts their updates.

    Args:
      store: The `ParameterStore`.
      variables: List of `keras.Variable`, created under its strategy.

    Returns:
      A dict that JSON can hold, of names of resources and, as numbers,
      servers:
        num_servers: How many there are.
        updates: Name of the scalar int64 in which each server counts the
          updates that it has applied.
        clocks: With local steps, step counters of the optimizers that take
          them, each `[server, name, dtype]`: the greatest is the number of
          steps made. Without, empty.
        variables: For each its `path`, `shape` (list of ints), `dtype`, and
          `pieces`: in the order of rows `[server, name, rows]`; `rows` is
          None for a variable that is whole. Without pieces is what belongs
          to each worker.

    Raises:
      ValueError: A variable was created outside the strategy's scope.
    """
    clocks = [v for v in list(store.variables) if v.role is Role.CLOCK]
    return {
        "num_servers": store.num_shards,
        "updates": store.name_of("version"),
        "clocks": [[v.shard, _name(store, v), v.dtype.name] for v in clocks],
        "variables": [_described(store, variable) for variable in variables],
    }


def _described(store, variable):
    replica = variable.value
    if not isinstance(replica, ReplicaVariable):
        raise ValueError(
            f"Variable {variable.path!r} was created outside "
            "strategy.scope(): create the model inside."
        )
    pieces = []
    if replica.role is Role.TABLE:
        raise replica.refusal("a layout, which is of whole weights")
    if replica.pieces:
        pieces = [
            [piece.shard, _name(store, replica, piece), piece.rows]
            for piece in replica.pieces
        ]
    elif replica.role.is_on_server:
        # Other servers may have copies; this one has the newest.
        pieces = [[replica.shard, _name(store, replica), None]]
    return {
        "path": variable.path,
        "shape": replica.shape_of(None).as_list(),
        "dtype": replica.dtype.name,
        "pieces": pieces,
    }


def _name(store, variable, piece=None):
    return store.name_of(store.variable_name(variable, piece))
