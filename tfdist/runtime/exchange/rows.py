"""Pulling only the rows of a table that have changed.

An embedding table is not copied whole for the handful of rows that a step
touches. The server keeps, beside the table, the version at which each row
last changed; a worker gets the rows that changed since its last pull. So its
replica is as fresh as after a whole pull, whoever changed the rows.
"""

import tensorflow as tf

from tfdist.runtime.variables.variables import Role

# Smaller tables are pulled whole.
FROM_BYTES = 1 << 18
_SCATTERS = (
    "ResourceScatterAdd",
    "ResourceScatterSub",
    "ResourceScatterUpdate",
    "ResourceScatterMul",
    "ResourceScatterDiv",
    "ResourceScatterMin",
    "ResourceScatterMax",
)
_READS = ("ReadVariableOp", "ResourceGather", "VariableShape")


def is_large(variable):
    """Whether a worker may pull rows of `variable`."""
    return (
        not variable.pieces
        and bool(variable.shape.rank)
        and variable.num_bytes >= FROM_BYTES
    )


def is_stamped(variable):
    """Whether servers stamp rows of `variable` with their versions.

    Whoever changes it: other workers may pull rows of it, or will do so.
    """
    return variable.role is Role.PARAMETER and is_large(variable)


def is_candidate(variable, args):
    """Whether an update of `variable` with `args` may touch a few rows only."""
    return is_large(variable) and any(
        isinstance(a, tf.IndexedSlices) for a in tf.nest.flatten(args)
    )


def changed_by(operations, handle):
    """The rows of a table that `operations` change.

    Args:
      operations: List of `tf.Operation`, those of one section.
      handle: The table's handle in that section.

    Returns:
      A list of tensors of row numbers, or None if whole tables change (an
      optimizer with momentum changes rows that have no gradient, too).
    """
    rows, handles = [], {id(handle)}
    if operations:
        # In a branch it goes by another name.
        captures = getattr(operations[0].graph, "captures", ())
        handles.update(id(i) for outer, i in captures if outer is handle)
    for operation in operations:
        if not any(id(tensor) in handles for tensor in operation.inputs):
            continue
        if operation.type in _SCATTERS:
            rows.append(
                tf.cast(tf.reshape(operation.inputs[1], [-1]), tf.int64)
            )
        elif operation.type not in _READS:
            return None
    return rows


def mark(stamps, table, changed, version):
    """Notes which rows have changed with the update that makes `version`.

    Args:
      stamps: Handle of the int64 vector with the version of each row.
      table: The variable.
      changed: As `changed_by` returns.
      version: Scalar int64 tensor.
    """
    if changed is None:
        # Another worker's rule may leave rows alone.
        mark_all(stamps, table, version)
        return
    for some in changed:
        tf.raw_ops.ResourceScatterUpdate(
            resource=stamps,
            indices=some,
            updates=tf.fill(tf.shape(some), version),
        )


def mark_all(stamps, table, version):
    """Notes that all rows of `table` have changed; returns the operation."""
    return tf.raw_ops.AssignVariableOp(
        resource=stamps, value=tf.fill(table.shape[:1], version)
    )


def changed_since(stamps, handle, table, version):
    """The rows of `table` that changed after `version`.

    Args:
      stamps: Handle of the int64 vector with the version of each row.
      handle: Handle of the table on the server.
      table: The variable.
      version: Scalar int64 tensor.

    Returns:
      A list: their numbers, int64 `(n,)`, and their values `(n, ...)`.
    """
    known = tf.raw_ops.ReadVariableOp(resource=stamps, dtype=tf.int64)
    numbers = tf.reshape(tf.where(known > version), [-1])
    values = tf.raw_ops.ResourceGather(
        resource=handle, indices=numbers, dtype=table.dtype
    )
    values.set_shape([None, *table.shape[1:]])
    return [numbers, values]


def put(table, numbers, values):
    """Puts rows into the local replica of `table`; returns the operation."""
    with tf.device(table.local_handle.device):
        return tf.raw_ops.ResourceScatterUpdate(
            resource=table.local_handle, indices=numbers, updates=values
        )
