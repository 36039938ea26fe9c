"""State on servers: primaries, their placement, counters, locks, and names."""

import weakref

import tensorflow as tf

from tfdist import own_random_numbers
from tfdist import variable_names
from tfdist.cluster import manifests
from tfdist.program_error import ProgramError
from tfdist.runtime.variables import dynamic_table
from tfdist.runtime.variables import look_up
from tfdist.runtime.variables import partitions as partitions_lib
from tfdist.runtime.variables import resources
from tfdist.runtime.variables import sharding
from tfdist.runtime.variables import table as table_lib
from tfdist.runtime.variables import variable_list
from tfdist.runtime.variables.variables import Piece
from tfdist.runtime.variables.variables import ReplicaVariable
from tfdist.runtime.variables.variables import Role
from tfdist.runtime.variables.variables import role_of

# Older than any version of rows.
_UNKNOWN = -1


class ParameterStore(resources.Resources):
    """The variables of one strategy, on its servers and on this worker.

    Args:
      owner: The `Runtime`, which its variables tell what happens to them.
      namespace: Prefix of the resources' names, the same on all workers.
      devices: List of the servers' devices, at least one.
      worker_device: This worker's CPU.
      worker_id: Number of this worker, 0 for the first.
      is_chief: Whether this worker gives new variables their first value.
      partitioner: Callable of `shape` and `dtype`, as in
        `tf.distribute.experimental.partitioners`, that says into how many
        pieces each parameter is split along its first axis; or None.
      clients: See `Resources`.
      tables: The `TableSettings`.
    """

    def __init__(
        self,
        owner,
        *,
        namespace,
        devices,
        worker_device,
        worker_id,
        is_chief,
        partitioner=None,
        clients=None,
        tables=table_lib.NO_TABLES,
    ):
        self._owner = owner
        self.tables = tables
        self._partitioner = partitioner
        self.worker_id = worker_id
        self.is_chief = is_chief
        super().__init__(namespace, devices, clients)
        self.worker_device = worker_device
        # Of users and of Keras, who hold them: what servers hold, and what
        # never leaves this worker.
        self.variables = variable_list.VariableList()
        self.locals = variable_list.VariableList()
        # Every `Traced` of this store, and what forgets as one.
        self.traced = weakref.WeakSet()
        self._balancer = sharding.ByteBalancer(len(self.devices))
        # By server, what `tables_on` returns.
        self._tables_on = [{} for _ in self.devices]
        self._look_up = look_up.LookUp(self, owner.before_eager_read)
        self._pulled_versions = [
            self.worker_variable(tf.zeros([], tf.int64), f"pulled_version_{k}")
            for k in range(self.num_shards)
        ]
        self._pulled_writes = [
            self.worker_variable(tf.zeros([], tf.int64), f"pulled_writes_{k}")
            for k in range(self.num_shards)
        ]

    @property
    def bytes_per_shard(self):
        """Bytes of variables on each server, a tuple of ints."""
        return self._balancer.bytes_per_shard

    # Calls.

    def call(self, function, *args):
        """Calls what talks to servers; outlives servers that come back."""
        return self._owner.call(function, *args)

    def forget_traced(self):
        """Forgets what was traced: what is called again is traced again."""
        for known in list(self.traced):
            known.forget()

    # Variables.

    def worker_variable(self, value, name):
        """A variable of tfdist's own that never leaves this worker."""
        with tf.init_scope(), tf.device(self.worker_device):
            variable = ReplicaVariable(
                owner=self._owner,
                role=Role.LOCAL,
                initial_value=value,
                name=name,
                trainable=False,
            )
            variable.is_own = True
            return variable

    def create_variable(
        self,
        reference,
        *,
        made_by_optimizer=False,
        made_by_layer=False,
        **kwargs,
    ):
        """Creates a variable for the user's model.

        Args:
          reference: Variable that it is to be beside, or None.
          made_by_optimizer: Whether it is state of an optimizer.
          made_by_layer: Whether `Layer.add_weight` makes it.
          **kwargs: What `tf.Variable` takes.

        Returns:
          A `ReplicaVariable`.
        """
        with tf.init_scope():
            probe = ReplicaVariable(
                owner=self._owner, role=Role.LOCAL, **kwargs
            )
            role = role_of(
                name=kwargs.get("name"),
                dtype=probe.dtype,
                trainable=probe.trainable,
                synchronization=probe.synchronization,
                aggregation=probe.aggregation,
                reference=reference,
                made_by_optimizer=made_by_optimizer,
                made_by_layer=made_by_layer,
            )
            probe.made_by_optimizer = made_by_optimizer
            role = self._owner.role_of(role, made_by_optimizer)
            probe.role = role
            if variable_names.is_seed(kwargs.get("name")):
                self.spread_seed(probe)
            if role is Role.LOCAL:
                self.locals.append(probe)
            if role.is_on_server:
                self._place(probe, reference)
            else:
                probe.is_put_back = True
            self._owner.was_made(probe)
            return probe

    def create_table(self, reference, *, shape, **kwargs):
        """Creates a variable that no worker holds.

        Args:
          reference: The table that it is a slot of, or None.
          shape: Its shape, a tuple of two ints.
          **kwargs: What `TableVariable` takes.

        Returns:
          A `TableVariable`.
        """
        with tf.init_scope():
            kind = table_lib.TableVariable
            if "rows_maker" in kwargs:
                kind = dynamic_table.DynamicTable
            table = kind(
                owner=self._owner,
                shape=shape,
                look_up=self._look_up,
                rule=self.tables.rule,
                is_slot=reference is not None,
                **kwargs,
            )
            if reference is None:
                table.pieces = self._scatter(table)
            else:
                table.pieces = reference.pieces
            row_bytes = table.num_bytes // shape[0]
            for piece in table.pieces:
                self._balancer.add(piece.shard, piece.rows * row_bytes)
            table.ordinal = len(self.variables)
            for piece in table.pieces:
                name = self.variable_name(table, piece)
                self._tables_on[piece.shard][self.name_of(name)] = self.name_of(
                    self.held_name(table, piece)
                )
            self.variables.append(table)
            self._owner.was_made(table)
            return table

    def held_name(self, table, piece):
        """Name of the bool that is there when a server holds its `Piece`.

        A worker may die while it has a server make its part of a table.
        """
        return f"{self.variable_name(table, piece)}/held"

    def tables_on(self, shard):
        """Returns the tables on a server, a dict of name to `held_name`."""
        return dict(self._tables_on[shard])

    def _scatter(self, table):
        """The pieces of a table, one on each server."""
        partitions = partitions_lib.Partitions(table.shape[0], self.num_shards)
        kind, more = table_lib.TablePiece, ()
        if table.is_dynamic:
            kind, more = (
                dynamic_table.DynamicPiece,
                (table.new_index(partitions),),
            )
        pieces, first = [], 0
        for shard in range(self.num_shards):
            rows = len(partitions.on(shard)) * partitions.rows_each
            pieces.append(kind(shard, shard, first, rows, partitions, *more))
            first += rows
        return tuple(pieces)

    def spread_seed(self, variable):
        """Gives this worker a random stream; see `own_random_numbers`."""
        state = own_random_numbers.spread_seed(variable.numpy(), self.worker_id)
        variable.assign_replica(tf.constant(state, variable.dtype))

    def _place(self, variable, reference):
        if not variable.shape.is_fully_defined():
            raise ValueError(
                f"Variable {variable.name!r} has shape {variable.shape}; a "
                "variable with a primary on a server needs a fully defined "
                "shape."
            )
        variable.ordinal = len(self.variables)
        shard = getattr(reference, "shard", None)
        if variable.role is Role.ITERATIONS:
            shard = 0
            variable.pulled = self.worker_variable(
                variable.numpy(), f"{variable.name.split(':')[0]}_pulled"
            )
        if variable.role is Role.PARAMETER:
            variable.pieces = self._split(variable)
        elif getattr(reference, "pieces", None):
            variable.pieces = self._split_like(variable, reference)
        if variable.pieces:
            pass
        elif shard is None:
            variable.shard = self._balancer.place(variable.num_bytes)
        else:
            variable.shard = shard
            self._balancer.add(shard, variable.num_bytes)
        self.variables.append(variable)

    def _split(self, variable):
        """The pieces of a parameter, empty if it stays whole."""
        if self._partitioner is None or not variable.shape.rank:
            return ()
        rows = sharding.rows_of_pieces(
            self._partitioner, variable.name, variable.shape, variable.dtype
        )
        if len(rows) < 2:
            return ()
        row_bytes = variable.num_bytes // variable.shape[0]
        pieces, first = [], 0
        for number, count in enumerate(rows):
            shard = self._balancer.place(count * row_bytes)
            pieces.append(Piece(number, shard, first, count))
            first += count
        return tuple(pieces)

    def _split_like(self, variable, reference):
        if variable.shape != reference.shape:
            raise ValueError(
                f"{reference.name!r} is split over servers by "
                f"variable_partitioner, and the optimizer's {variable.name!r} "
                f"of shape {variable.shape} cannot be split alike. Use an "
                "optimizer that updates each element for itself, or no "
                "variable_partitioner."
            )
        row_bytes = variable.num_bytes // variable.shape[0]
        for piece in reference.pieces:
            self._balancer.add(piece.shard, piece.rows * row_bytes)
        return reference.pieces

    def copies_of(self, variable):
        """Copies of `variable`, a list of (server, `Piece` or None).

        Step counters are everywhere: each server counts the updates of its
        own slots. Other state is small and initialised everywhere, because
        only the traced optimizer shows which server uses it. Tables have
        copies nowhere.
        """
        if variable.role is Role.TABLE:
            return []
        if variable.role in (Role.ITERATIONS, Role.STATE):
            return [(shard, None) for shard in range(self.num_shards)]
        if variable.pieces:
            return [(piece.shard, piece) for piece in variable.pieces]
        return [(variable.shard, None)]

    def claim(self, variable, shard):
        """Checks that `variable` may be used on `shard`.

        State that only update rules touch moves to the server whose update
        rule touches it.

        Raises:
          ProgramError: If its newest value is on another server.
        """
        if variable.shard == shard or variable.role is Role.ITERATIONS:
            return
        if variable.role is Role.STATE:
            if variable.shape.num_elements() == 1:
                return
            if not variable.assigned_by_workers:
                variable.shard = shard
                return
        raise ProgramError(
            f"The update of a variable on {self.devices[shard]} uses "
            f"{variable.name!r}, whose primary is on "
            f"{self.devices[variable.shard]}."
        )

    def live_on(self, shard):
        """Ordinals of what is read afresh when it is used on `shard`."""
        return self.counters() | {
            v.ordinal
            for v in self.variables
            if v.role in (Role.PARAMETER, Role.SLOT) and v.shard == shard
        }

    def counters(self):
        """Ordinals of optimizers' step counters, a frozenset."""
        return frozenset(
            v.ordinal for v in self.variables if v.role is Role.ITERATIONS
        )

    # What this worker has pulled.

    def pulled_version(self, shard):
        """Version of `shard` at this worker's last pull, scalar int64."""
        return self._pulled_versions[shard].read_value()

    def set_pulled_version(self, shard, value):
        """Sets what `pulled_version` gives; returns the operation."""
        return tf.raw_ops.AssignVariableOp(
            resource=self._pulled_versions[shard].local_handle, value=value
        )

    def note_exchange(self, graph):
        """Called when an exchange was built in a graph; see `LookUp`."""
        self._look_up.note_exchange(graph)

    def writes(self, shard):
        """The `Counter` of assignments outside of updates on `shard`."""
        return self.counter(f"version{manifests.WRITES}", shard)

    def build_count_write(self, shard):
        """Counts one more assignment outside of updates on `shard`.

        Returns:
          How many that makes, a scalar int64 tensor, and the operation.
        """
        number = self.writes(shard).read_or_zero() + 1
        return number, self.writes(shard).set(number)

    def pulled_writes(self, shard):
        """Assignments on `shard` that this worker knows, scalar int64.

        There may be more in its replicas: exchanges do not ask.
        """
        return self._pulled_writes[shard].read_value()

    def set_pulled_writes(self, shard, value):
        """Sets what `pulled_writes` gives; returns the operation."""
        return tf.raw_ops.AssignVariableOp(
            resource=self._pulled_writes[shard].local_handle, value=value
        )

    # Tables that are pulled by rows.

    def row_stamps(self, table):
        """Handle of the versions at which the rows of `table` changed."""
        name = f"rows/{table.ordinal}"
        return self.resource(table.shard, name, tf.int64, table.shape[:1])

    def rows_pulled(self, table):
        """Version of the rows of `table` here, a scalar int64 tensor."""
        if table.rows_pulled is None:
            table.rows_pulled = self.worker_variable(
                lambda: tf.constant(table.first_rows_pulled, tf.int64),
                "rows_pulled",
            )
            with tf.init_scope():
                self._owner.stamp_rows(table)
        return table.rows_pulled.read_value()

    def forget_rows(self, table):
        """Has the next exchange that changes rows of `table` pull them all."""
        if table.rows_pulled is None:
            table.first_rows_pulled = _UNKNOWN
        else:
            table.rows_pulled.assign_replica(_UNKNOWN)

    def set_rows_pulled(self, table, version):
        """Sets what `rows_pulled` gives; returns the operation."""
        return tf.raw_ops.AssignVariableOp(
            resource=table.rows_pulled.local_handle, value=version
        )
