"""Slots of corrections, on servers or on a worker."""

import functools

import tensorflow as tf

from tfdist.cluster import resource_values
from tfdist.correction import Slots


class WorkerSlots(Slots):
    """Slots in variables of this worker."""

    def __init__(self, variables):
        self.variables = variables

    def read(self, name, rows=None):
        value = self.variables[name].read_value()
        return value if rows is None else tf.gather(value, rows)

    def assign(self, name, value, rows=None):
        variable = self.variables[name]
        if rows is None:
            variable.assign(value, read_value=False)
        else:
            variable.scatter_update(tf.IndexedSlices(value, rows))


class PendingSlots(Slots):
    """Slots whose assignments take effect if the update is made.

    Until then, they are tensors of the graph that computes the update.

    Args:
      slots: The `WorkerSlots` that are assigned.
    """

    def __init__(self, slots):
        self._slots = slots
        self._pending = {}

    def read(self, name, rows=None):
        value = self._pending.get(name)
        if value is None:
            return self._slots.read(name, rows)
        return value if rows is None else tf.gather(value, rows)

    def assign(self, name, value, rows=None):
        if rows is not None:
            rows = tf.convert_to_tensor(rows)[..., None]
            old = self.read(name)
            value = tf.tensor_scatter_nd_update(old, rows, value)
        self._pending[name] = value

    def settle(self, finite):
        """Builds the assignments.

        Args:
          finite: Whether the update is made, a scalar bool tensor; None if
            it is made in any case.
        """
        for name, value in self._pending.items():
            if finite is not None:
                value = tf.where(finite, value, self._slots.read(name))
            self._slots.assign(name, value)


class ServerSlots(Slots):
    """Slots on a server; all is built in its scope."""

    def __init__(self, ledger, shard, name, shapes, dtype):
        self._ledger = ledger
        self._shard = shard
        self._name = name
        self._shapes = shapes
        self._dtype = dtype

    @property
    def names(self):
        """The names of the slots, a list."""
        return list(self._shapes)

    def _handle(self, name):
        return self._ledger.resource(
            self._shard, f"{self._name}/{name}", self._dtype, self._shapes[name]
        )

    def make(self):
        """Makes them if they are not there; returns the operations."""
        return [
            resource_values.build_put_if_missing(
                self._handle(name),
                functools.partial(tf.zeros, shape, self._dtype),
            ).op
            for name, shape in self._shapes.items()
        ]

    def read(self, name, rows=None):
        value = read(self._handle(name), self._dtype, rows)
        if rows is None:
            value.set_shape(self._shapes[name])
        return value

    def assign(self, name, value, rows=None):
        value = tf.convert_to_tensor(value, self._dtype)
        if rows is None:
            tf.raw_ops.AssignVariableOp(
                resource=self._handle(name), value=value
            )
        else:
            tf.raw_ops.ResourceScatterUpdate(
                resource=self._handle(name), indices=rows, updates=value
            )


def dtype_of(variable):
    """In which a correction computes for `variable`."""
    return tf.float32 if variable.dtype.size < 4 else variable.dtype


def place_of(variable, piece):
    """Part of a name that stands for a variable, or a `Piece` of it."""
    number = "" if piece is None else f"/{piece.number}"
    return f"{variable.ordinal}{number}"


def name_of(correction, variable, piece, num_workers):
    """Name of the slots of a variable or piece of it, in a ledger.

    Where some have a part for each worker, a snapshot of another number of
    workers has none of this name: all of them begin with zeros.

    Args:
      correction: A `Correction`.
      variable: A `ReplicaVariable`.
      piece: A `Piece` of it, or None.
      num_workers: Number of workers.
    """
    name = f"correction/{place_of(variable, piece)}"
    shape = variable.shape_of(piece).as_list()
    shapes = [correction.slots(shape, num_workers + k) for k in range(2)]
    return name if shapes[0] == shapes[1] else f"{name}/of-{num_workers}"


def zeros(correction, parameter, num_workers):
    """Returns the initial values of slots.

    Args:
      correction: A `Correction`.
      parameter: A Keras variable.
      num_workers: Number of workers.

    Returns:
      A dict of name to tensor.
    """
    shapes = correction.slots(list(parameter.shape), num_workers)
    dtype = dtype_of(parameter.value)
    return {name: tf.zeros(shape, dtype) for name, shape in shapes.items()}


def widened(tensor):
    """Half precision as float32: squares of gradients would underflow."""
    if tensor.dtype.is_floating and tensor.dtype.size < 4:
        return tf.cast(tensor, tf.float32)
    return tensor


def read(handle, dtype, rows=None):
    """The value of a resource, or rows of it."""
    if rows is None:
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    return tf.raw_ops.ResourceGather(resource=handle, indices=rows, dtype=dtype)
