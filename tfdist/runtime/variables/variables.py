"""Variables with a local replica and a primary on a parameter server.

Which copy is meant depends on where the variable is used. In the user's code
it is the local replica: stock TensorFlow reads, gradients and eager access.
Inside a *section*, the part of a training step that runs on a server, the
handle of the very same object is the primary's, so that an optimizer's own
update rule acts on the server without knowing it.
"""

import dataclasses
import enum
import functools
import re
import threading

import tensorflow as tf

from tfdist import one_replica
from tfdist import private_keras_calls
from tfdist import private_tensorflow
from tfdist import variable_names
from tfdist.program_error import ProgramError
from tfdist.saving import models


class Role(enum.Enum):
    """Role of a variable, which says where it lives.

    PARAMETER: trainable; the primary is on a server, every worker holds a
      replica that each exchange refreshes.
    SLOT: optimizer state that belongs to a parameter; beside its primary. The
      replica is refreshed only when it is read eagerly (to save it).
    STATE: other floating-point state (moving statistics, factors); the
      primary is on a server, changes are applied there to the newest value.
    ITERATIONS: an optimizer's step counter; every server counts its own
      updates, the replica follows the first server.
    LOCAL: belongs to the worker (learning rate, seeds, loss scale, gradient
      accumulators, integers, what neither a layer nor an optimizer makes):
      never leaves it.
    METRIC: belongs to the worker; summed over the cluster on demand.
    CLOCK: with local steps, the step counter of the optimizer that takes
      them. Each worker counts its own; a server keeps the most, where a
      worker that joins begins.
    AVERAGED: with local steps, optimizer state that is averaged along with
      its parameter; beside its primary.
    TABLE: a parameter that is read by rows, or a slot of one; on the servers
      alone, in pieces. See `table`.
    """

    PARAMETER = "parameter"
    SLOT = "slot"
    STATE = "state"
    ITERATIONS = "iterations"
    LOCAL = "local"
    METRIC = "metric"
    CLOCK = "clock"
    AVERAGED = "averaged"
    TABLE = "table"

    @property
    def is_on_server(self):
        """Whether variables of this role have a primary on a server."""
        return self not in (Role.LOCAL, Role.METRIC)


# Keras gives it to the second of several layers or optimizers of one name.
_NUMBER = re.compile(r"_\d+(?=[_/]|$)")
# Keras marks both the step counter and the learning rate with this;
# TensorFlow its global step, which is no optimizer's.
_FIRST_REPLICA = tf.VariableAggregation.ONLY_FIRST_REPLICA
# A variable made by hand says so that it is not a worker's own.
_AGGREGATED = (tf.VariableAggregation.MEAN, tf.VariableAggregation.SUM)
# `LossScaleOptimizer` keeps its scale per replica: each worker has its own
# overflows.
_LOCAL_NAMES = ("learning_rate", "dynamic_scale", "step_counter")


def role_of(
    *,
    name,
    dtype,
    trainable,
    synchronization,
    aggregation,
    reference,
    made_by_optimizer,
    made_by_layer,
):
    """The role of a variable, from what Keras says when it creates it.

    Args:
      name: Name given by the creator, may hold a path.
      dtype: `tf.DType` of the variable.
      trainable: bool.
      synchronization: `tf.VariableSynchronization`.
      aggregation: `tf.VariableAggregation`.
      reference: The variable that it was created beside, or None.
      made_by_optimizer: Whether it is state of an optimizer. A layer may have
        a weight of any name.
      made_by_layer: Whether `Layer.add_weight` makes it. What anybody else
        makes (the state of an RNN, of a metric) belongs to a worker's own
        batches, unless `aggregation` is MEAN or SUM.

    Returns:
      A `Role`.
    """
    leaf = variable_names.leaf(name)
    if synchronization == tf.VariableSynchronization.ON_READ:
        return Role.METRIC
    if made_by_optimizer and (
        variable_names.is_accumulator(name) or leaf in _LOCAL_NAMES
    ):
        return Role.LOCAL
    if reference is not None:
        return Role.SLOT
    if trainable and (dtype.is_floating or dtype.is_complex):
        return Role.PARAMETER
    is_counter = dtype.is_integer and aggregation == _FIRST_REPLICA
    if made_by_optimizer and is_counter:
        return Role.ITERATIONS
    is_shared = made_by_optimizer or made_by_layer or aggregation in _AGGREGATED
    if not is_shared or not (dtype.is_floating or dtype.is_complex):
        return Role.LOCAL
    return Role.STATE


def plain_name(name):
    """A variable's name without what tells it from others in one process."""
    return _NUMBER.sub("", name)


@dataclasses.dataclass(frozen=True)
class Piece:
    """Rows of a variable that is split along its first axis.

    Attributes:
      number: Position among the variable's pieces.
      shard: The server that holds it.
      first: Its first row.
      rows: Number of rows.
    """

    number: int
    shard: int
    first: int
    rows: int

    def of(self, tensor):
        """The rows of `tensor` that are this piece's."""
        return tensor[self.first : self.first + self.rows]

    def slices_of(self, slices, shape):
        """The slices that fall into the piece, numbered within it.

        Args:
          slices: `tf.IndexedSlices` of the whole variable.
          shape: Shape of the whole variable.
        """
        dtype = slices.indices.dtype
        numbers = slices.indices - tf.cast(self.first, dtype)
        inside = tf.logical_and(numbers >= 0, numbers < self.rows)
        return tf.IndexedSlices(
            tf.boolean_mask(slices.values, inside),
            tf.boolean_mask(numbers, inside),
            tf.constant([self.rows, *shape[1:]], dtype),
        )


class _Active(threading.local):
    """Step and server scope that the calling thread is building."""

    step = None
    section = None

    def eager_step(self):
        """The step that runs eagerly, None if it is traced."""
        if self.step is None or not self.step.is_eager:
            return None
        return self.step if tf.executing_eagerly() else None


active = _Active()


class ReplicaVariable(private_tensorflow.ResourceVariable):
    """A resource variable whose handle follows the place of its use.

    Created by the strategy under its scope, never by users.
    """

    def __init__(self, *, owner, role, shard=None, ordinal=None, **kwargs):
        self._owner = owner
        self.role = role
        # The server of the primary; None for worker-local variables.
        self.shard = shard
        # Position among the variables on servers, the same on all workers.
        self.ordinal = ordinal
        # Whether it is state of an optimizer.
        self.made_by_optimizer = False
        # Whether a worker's code assigns it in a step, not only update rules;
        # of PARAMETER and STATE.
        self.assigned_by_workers = False
        # How often steps that were traced, and eager ones, assign it.
        self.num_assignments = 0
        # The pieces of a variable that is split over servers, else empty.
        self.pieces = ()
        # ITERATIONS only: the value at the last pull, and a weak reference to
        # the Keras optimizer that counts in it.
        self.pulled = self.optimizer = None
        # Whether a step that is taken again finds it as it was before.
        self.is_put_back = False
        # Whether it is tfdist's own, and no part of a user's model.
        self.is_own = False
        # Whether it has a row for each worker.
        self.is_by_worker = False
        # Whether all other workers have freed it, see `unused_models`.
        self.is_over = False
        # Tables pulled by rows only: the version of the rows here, and the one
        # to begin with.
        self.rows_pulled = None
        self.first_rows_pulled = 0
        super().__init__(**kwargs)

    @property
    def handle(self):
        section = active.section
        if section is None or not self.role.is_on_server:
            return self.local_handle
        return section.handle(self)

    @property
    def _shape(self):
        # Inside an update of one piece the variable is that piece.
        section = active.section
        if self.pieces and section is not None:
            return self.shape_of(section.piece_of(self))
        return self._full_shape

    @_shape.setter
    def _shape(self, shape):
        self._full_shape = shape

    def shape_of(self, piece):
        """Shape of a `Piece`; of the whole variable for None."""
        if piece is None:
            return self._full_shape
        return tf.TensorShape([piece.rows, *self._full_shape[1:]])

    @property
    def _handle(self):
        # Else an eager operation would take an old replica of a slot, or the
        # stand-in for a table.
        if self.role.is_on_server:
            return private_tensorflow.UnreadHandle(self._local_handle)
        return self._local_handle

    @_handle.setter
    def _handle(self, handle):
        self._local_handle = handle

    @property
    def local_handle(self):
        """The handle of the replica, wherever it is asked for."""
        return self._local_handle

    @property
    def files(self):
        """The `Files` of the task."""
        return self._owner.files

    @property
    def num_bytes(self):
        """Size in bytes, int."""
        return self.shape.num_elements() * self.dtype.size

    def __tf_tracing_type__(self, context):
        stock = super().__tf_tracing_type__(context)
        return one_replica.OwnTraceType(self, stock)

    def move_replica(self, device):
        """Moves the local replica to another device of this worker.

        The primary stays where it is. What a user has traced with the replica
        has to be traced again.
        """
        with tf.init_scope(), tf.device(device):
            # Not `tf.Variable`, which would ask the strategy to make it.
            self._moved = private_tensorflow.ResourceVariable(
                initial_value=super()._read_variable_op(), trainable=False
            )
        # What was traced with the old one fails rather than goes on with it.
        private_tensorflow.empty_variable(self.local_handle, self.dtype)
        self._handle = self._moved.handle
        self._owner.was_moved(self)

    @property
    def device(self):
        """The device of the local replica, a full name."""
        return self.local_handle.device

    def assign_replica(self, value):
        """Sets the local replica alone; returns nothing."""
        super().assign(value, read_value=False)

    def _read_variable_op(self, no_copy=False):
        if active.section is not None:
            if not self.role.is_on_server:
                return active.section.read_local(self)
            if self.role is Role.ITERATIONS:
                return active.section.read_counter(
                    self, functools.partial(super()._read_variable_op, no_copy)
                )
        if (
            active.section is None
            and self.files.is_shared
            and not tf.executing_eagerly()
        ):
            # Of a model that calls its layers in a loop of the user's own.
            models.see_callers(self.files)
        self._before_read()
        return super()._read_variable_op(no_copy)

    def _mutate(self, kind, value, kwargs):
        method = getattr(super(), kind)
        if active.section is not None or not self.role.is_on_server:
            self._keep()
            return method(value, **kwargs)
        if tf.executing_eagerly() and active.eager_step() is None:
            after = self._owner.before_eager_write(self)
            result = method(value, **kwargs)
            after(self)
            return result
        is_graph = not tf.executing_eagerly()
        if is_graph and private_keras_calls.is_computing_shapes():
            return method(value, **kwargs)
        if active.step is None:
            raise ProgramError(
                f"Variable {self.name!r} is assigned in a tf.function outside "
                "strategy.run: its primary on the server would not hear of "
                "it. Assign it eagerly, or inside strategy.run."
            )
        active.step.before_mutation(self)
        if active.step.is_local:
            result = method(value, **kwargs)
            active.step.assigned(self)
            return result
        before = super()._read_variable_op()
        result = method(value, **kwargs)
        active.step.record_mutation(self, kind, value, before)
        return result

    def _keep(self):
        """Has a step that may be taken again put back what it was."""
        step = active.step
        if self.is_put_back and step is not None and step.may_be_repeated:
            step.keep(self)

    def _mutate_elements(self, kind, values, *args, **kwargs):
        """Assigns some elements; a server is sent all, as one assignment.

        Args:
          kind: Name of the method.
          values: Callable without arguments that builds the new values of all.
          *args: Those of the method.
          **kwargs: Those of the method.
        """
        if active.section is not None or not self.role.is_on_server:
            self._keep()
            return getattr(super(), kind)(*args, **kwargs)
        return self.assign(values())

    def sparse_read(self, indices, name=None):
        self._before_read()
        return super().sparse_read(indices, name)

    def gather_nd(self, indices, name=None):
        self._before_read()
        return super().gather_nd(indices, name)

    def _before_read(self):
        if self.is_own and not self.role.is_on_server:
            return  # Other threads read those, too: heartbeats for example.
        if active.section is None and tf.executing_eagerly():
            # A step sees what the last exchange has brought.
            if active.eager_step() is None:
                self._owner.before_eager_read(self)

    def assign(self, value, use_locking=None, name=None, read_value=True):
        kwargs = {"name": name, "read_value": read_value}
        return self._mutate("assign", value, kwargs)

    def assign_add(self, delta, use_locking=None, name=None, read_value=True):
        kwargs = {"name": name, "read_value": read_value}
        return self._mutate("assign_add", delta, kwargs)

    def assign_sub(self, delta, use_locking=None, name=None, read_value=True):
        kwargs = {"name": name, "read_value": read_value}
        return self._mutate("assign_sub", delta, kwargs)

    def _scatter(self, kind, sparse_delta, use_locking=False, name=None):
        return self._mutate(kind, sparse_delta, {"name": name})

    scatter_add = functools.partialmethod(_scatter, "scatter_add")
    scatter_sub = functools.partialmethod(_scatter, "scatter_sub")
    scatter_mul = functools.partialmethod(_scatter, "scatter_mul")
    scatter_div = functools.partialmethod(_scatter, "scatter_div")
    scatter_min = functools.partialmethod(_scatter, "scatter_min")
    scatter_max = functools.partialmethod(_scatter, "scatter_max")
    scatter_update = functools.partialmethod(_scatter, "scatter_update")

    def _scatter_nd(self, kind, indices, updates, name=None):
        def values():
            old = tf.convert_to_tensor(self)
            new = tf.convert_to_tensor(updates, self.dtype)
            return getattr(tf, f"tensor_{kind}")(old, indices, new)

        return self._mutate_elements(kind, values, indices, updates, name)

    scatter_nd_add = functools.partialmethod(_scatter_nd, "scatter_nd_add")
    scatter_nd_sub = functools.partialmethod(_scatter_nd, "scatter_nd_sub")
    scatter_nd_min = functools.partialmethod(_scatter_nd, "scatter_nd_min")
    scatter_nd_max = functools.partialmethod(_scatter_nd, "scatter_nd_max")
    scatter_nd_update = functools.partialmethod(
        _scatter_nd, "scatter_nd_update"
    )

    def batch_scatter_update(self, sparse_delta, use_locking=False, name=None):
        def values():
            raise NotImplementedError(
                f"Variable {self.name!r} has its primary on a server: use "
                "scatter_nd_update or assign in place of batch_scatter_update."
            )

        return self._mutate_elements(
            "batch_scatter_update", values, sparse_delta, use_locking, name
        )

    def _strided_slice_assign(
        self, begin, end, strides, value, name=None, **masks
    ):
        # `variable[...].assign(value)`.
        def values():
            return tf.raw_ops.TensorStridedSliceUpdate(
                input=tf.convert_to_tensor(self),
                begin=begin,
                end=end,
                strides=strides,
                value=tf.convert_to_tensor(value, self.dtype),
                **masks,
            )

        return self._mutate_elements(
            "_strided_slice_assign",
            values,
            begin,
            end,
            strides,
            value,
            name,
            **masks,
        )

    def _restore_from_tensors(self, restored_tensors):
        # Checkpoints write to the raw handle; the primary has to hear of it.
        (value,) = restored_tensors.values()
        return self.assign(value)
