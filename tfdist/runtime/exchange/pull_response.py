"""Pull responses: fresh values from the servers into the replicas."""

import dataclasses

import tensorflow as tf

from tfdist.runtime.exchange import rows
from tfdist.runtime.variables import resources
from tfdist.runtime.variables.variables import Role

_PULLED = (Role.PARAMETER, Role.STATE, Role.AVERAGED)


@dataclasses.dataclass
class PullResponse:
    """Response of one server to an exchange; tensors on the worker.

    Attributes:
      shard: Number of the server.
      fresh: List of (variable, `Piece` or None, value).
      rows: List of (variable, numbers of rows, their values).
      staleness: Scalar int64 tensor.
      wait: Seconds between arrival and turn, scalar float64 tensor.
      version: Updates applied, scalar int64 tensor.
      more: What else was read, a list of scalar tensors.
      told: What the chief has told, see `ChiefDecisions`; None if nobody looks.
      repeated: 1 if the server had applied the batch before, else 0, a scalar
        int64 tensor; None if nobody looks.
    """

    shard: int
    fresh: list
    rows: list
    staleness: tf.Tensor
    wait: tf.Tensor
    version: tf.Tensor
    more: list
    told: tf.Tensor | None = None
    repeated: tf.Tensor | None = None


def pulled_from(store, shard, records, iterations):
    """Variables whose replicas an exchange refreshes from a server.

    Args:
      store: The `ParameterStore`.
      shard: Number of the server.
      records: List of `Update` and `Mutation`.
      iterations: The step counter of the optimizer whose step it is, or None.

    Returns:
      A list of variables in the order in which they were made.
    """
    fresh = {}
    for record in records:
        variable = record.variable
        # Of an average in an eager step the change is sent.
        is_change = variable.role is Role.SLOT and (
            getattr(record, "kind", None) == "assign_add"
        )
        if variable.role not in _PULLED and not is_change:
            continue
        holders = (variable.shard, *(p.shard for p in variable.pieces))
        if shard in holders:
            fresh[variable.ordinal] = variable
    if iterations is not None and shard == 0:
        fresh[iterations.ordinal] = iterations
    return [fresh[ordinal] for ordinal in sorted(fresh)]


def all_here(store, responses):
    """Builds the operation that runs when all answers are here as a whole.

    Nothing is put into replicas before: where a server dies in the middle of
    its answer, they stay of one update, to which it may be restored.

    Args:
      store: The `ParameterStore`.
      responses: List of `PullResponse`.
    """
    found = []
    for response in responses:
        found += [value for _, _, value in response.fresh]
        found += [tensor for _, *both in response.rows for tensor in both]
        found += [response.version, *response.more]
        found += [
            tensor
            for tensor in (response.told, response.repeated)
            if tensor is not None
        ]
    arrived = [tensor.op for tensor in found]
    return resources.one_after(arrived, store.worker_device)


def bring_home(store, response, is_step):
    """Puts what a server has answered into the replicas.

    Args:
      store: The `ParameterStore`.
      response: An `PullResponse`.
      is_step: Whether an optimizer's step has been exchanged.

    Returns:
      The operations.
    """
    done = []
    with tf.device(store.worker_device):
        for variable, piece, value in response.fresh:
            if piece is not None:
                continue
            value.set_shape(variable.shape)
            if variable.role is Role.ITERATIONS:
                # Keras adds the one itself when its step ends.
                done.append(assign(variable.pulled.handle, value))
                value = value - 1
            done.append(assign(variable.local_handle, value))
        for table, numbers, values in response.rows:
            done.append(rows.put(table, numbers, values))
            done.append(store.set_rows_pulled(table, response.version))
        # Without an optimizer's step this worker has not pulled all, but an
        # exchange in a branch is put after this one by what they both assign.
        version = (
            response.version
            if is_step
            else store.pulled_version(response.shard)
        )
        with tf.control_dependencies([response.version.op]):
            done.append(store.set_pulled_version(response.shard, version))
    return done


def join_pieces(store, responses):
    """Puts split variables together; returns the operations."""
    found = {}
    for response in responses:
        for variable, piece, value in response.fresh:
            if piece is not None:
                pieces = found.setdefault(variable.ordinal, {})
                pieces[piece.number] = value
    done = []
    with tf.device(store.worker_device):
        for ordinal, pieces in found.items():
            variable = store.variables[ordinal]
            whole = tf.concat([pieces[k] for k in sorted(pieces)], 0)
            done.append(assign(variable.local_handle, whole))
    return done


def assign(handle, value):
    """Builds the assignment of a local variable; returns the operation.

    It runs where the variable is, which may be a GPU or a placed layer's.
    """
    with tf.device(handle.device):
        return tf.raw_ops.AssignVariableOp(resource=handle, value=value)
