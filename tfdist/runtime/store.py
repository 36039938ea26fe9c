"""What the servers hold: primaries, counters, locks, and their names."""

import weakref

import tensorflow as tf

from tfdist.runtime.checkpoint import training_state
from tfdist.runtime.exchange import journal
from tfdist.runtime.keras_hooks import calls
from tfdist.runtime.replicas import synchronize
from tfdist.runtime.variables import freeing
from tfdist.runtime.variables import resources
from tfdist.runtime.variables import sharding
from tfdist.runtime.variables import variable_list
from tfdist.runtime.variables.variables import Piece
from tfdist.runtime.variables.variables import ReplicaVariable
from tfdist.runtime.variables.variables import Role
from tfdist.runtime.variables.variables import role_of
from tfdist.saving import refusals

_SEED_STRIDE = 1_000_003
_MAX_SEED = 2**31 - 1


class ParameterStore(resources.Resources):
    """The variables of one strategy, on its servers and on this worker.

    Args:
      namespace: Prefix of the resources' names, the same on all workers.
      devices: List of the servers' devices, at least one.
      worker_device: This worker's CPU.
      worker_id: Number of this worker, 0 for the first.
      is_chief: Whether this worker gives new variables their first value.
      timeout: Seconds to wait for the chief to do so.
      partitioner: Callable of `shape` and `dtype`, as in
        `tf.distribute.experimental.partitioners`, that says into how many
        pieces each parameter is split along its first axis; or None.
    """

    def __init__(
        self,
        *,
        namespace,
        devices,
        worker_device,
        worker_id,
        is_chief,
        timeout,
        partitioner=None,
    ):
        self._partitioner = partitioner
        self.worker_id = worker_id
        self.is_chief = is_chief
        super().__init__(namespace, devices)
        self.worker_device = worker_device
        # Of users and of Keras, who hold them: what servers hold, and what
        # never leaves this worker.
        self.variables = variable_list.VariableList()
        self.locals = variable_list.VariableList()
        # Every `Traced` of this store.
        self.traced = weakref.WeakSet()
        # Calls of `fit` on this worker.
        self.fits = 0
        self._balancer = sharding.ByteBalancer(len(self.devices))
        self._pulled_versions = [
            self.worker_variable(tf.zeros([], tf.int64), f"pulled_version_{k}")
            for k in range(self.num_shards)
        ]
        # How decisions are made over gradients; None where none is needed.
        self.coordination = None
        # Builds, in the scope of a server's device, how many workers make up
        # the cluster, a scalar float64; None where that never changes.
        self.build_enlisted = None
        # What is done about late gradients; None where nothing is.
        self.corrector = None
        # What has become of gradients; None where a ledger counts them.
        self.gradient_counts = None
        # What is done about updates that are not finite; None for nothing.
        self.nonfinite = None
        # How many shares the data of the last `fit` was divided into; None
        # where each worker has all that it is given.
        self.data_shares = None
        # Steps between exchanges; None where each step is exchanged.
        self.local = None
        # What exchanges leave on servers; None where none can be half done.
        self.marks = None
        # What is saved and put back, a `TrainingState`.
        self.state = training_state.TrainingState(self)
        # What frees the memory of models that nobody uses.
        self.freeing = freeing.Freeing(self)
        # The strategy's creator of variables, for `variable_scope`.
        self.creator = None
        # A `ServerClient` for each server; None without servers.
        self.clients = None
        # How the chief's decisions are those of all; None where each decides.
        self.following = None
        # Which files this task writes, a `Files`; None where no other task
        # runs the same program.
        self.files = None
        # What has servers forget functions; None without servers.
        self.kernels = None
        # What brings servers back that have died; None without servers.
        self.recovery = None
        self.journal = journal.Journal(self)
        self._synchronizer = synchronize.Synchronizer(
            self, is_chief=is_chief, timeout=timeout
        )

    @property
    def bytes_per_shard(self):
        """Bytes of variables on each server, a tuple of ints."""
        return self._balancer.bytes_per_shard

    # Variables.

    def worker_variable(self, value, name):
        """A variable of tfdist's own that never leaves this worker."""
        with tf.init_scope(), tf.device(self.worker_device):
            return ReplicaVariable(
                store=self,
                role=Role.LOCAL,
                initial_value=value,
                name=name,
                trainable=False,
            )

    def variable_scope(self):
        """Scope like the strategy's, which none may enter within a step."""
        return tf.variable_creator_scope(self.creator)

    def create_variable(self, reference, *, made_by_optimizer=False, **kwargs):
        """Creates a variable for the user's model.

        Args:
          reference: Variable that it is to be beside, or None.
          made_by_optimizer: Whether it is state of an optimizer.
          **kwargs: What `tf.Variable` takes.

        Returns:
          A `ReplicaVariable`.
        """
        with tf.init_scope():
            probe = ReplicaVariable(store=self, role=Role.LOCAL, **kwargs)
            role = role_of(
                name=kwargs.get("name"),
                dtype=probe.dtype,
                trainable=probe.trainable,
                synchronization=probe.synchronization,
                aggregation=probe.aggregation,
                reference=reference,
            )
            if self.local is not None:
                role = self.local.role_of(role, made_by_optimizer)
            probe.role = role
            if kwargs.get("name") == "seed_generator_state":
                self.spread_seed(probe)
            if role is Role.LOCAL:
                self.locals.append(probe)
                self.state.local_was_made()
            if role.is_on_server:
                self._place(probe, reference)
            return probe

    def spread_seed(self, variable):
        """Gives each worker a random stream of its own, the first Keras's.

        Workers are seeded alike; drawing the same dropout masks at the same
        step would waste what several workers are for.
        """
        seed, *rest = variable.numpy()
        seed = (int(seed) + self.worker_id * _SEED_STRIDE) % _MAX_SEED
        variable.assign_replica(tf.constant([seed, *rest], variable.dtype))

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
        self.freeing.was_made(variable)

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
        """Where `variable` is held, a list of (server, `Piece` or None).

        Step counters are everywhere: each server counts the updates of its
        own slots. Other state is small and initialised everywhere, because
        only the traced optimizer shows which server uses it.
        """
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
          RuntimeError: If its newest value is on another server.
        """
        if variable.shard == shard or variable.role is Role.ITERATIONS:
            return
        if variable.role is Role.STATE:
            if variable.shape.num_elements() == 1:
                return
            if not variable.assigned_by_workers:
                variable.shard = shard
                return
        raise RuntimeError(
            f"The update of a variable on {self.devices[shard]} uses "
            f"{variable.name!r}, whose primary is on "
            f"{self.devices[variable.shard]}."
        )

    def live_on(self, shard):
        """Ordinals of what is read afresh when it is used on `shard`."""
        return frozenset(
            v.ordinal
            for v in self.variables
            if v.role is Role.ITERATIONS
            or (v.role in (Role.PARAMETER, Role.SLOT) and v.shard == shard)
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

    # Tables that are pulled by rows.

    def row_stamps(self, table):
        """Handle of the versions at which the rows of `table` changed."""
        name = f"rows/{table.ordinal}"
        return self.resource(table.shard, name, tf.int64, table.shape[:1])

    def rows_pulled(self, table):
        """Version of the rows of `table` here, a scalar int64 tensor."""
        if table.rows_pulled is None:
            table.rows_pulled = self.worker_variable(
                lambda: tf.zeros([], tf.int64), "rows_pulled"
            )
            with tf.init_scope():
                self._synchronizer.stamp_rows(table)
        return table.rows_pulled.read_value()

    def set_rows_pulled(self, table, version):
        """Sets what `rows_pulled` gives; returns the operation."""
        return tf.raw_ops.AssignVariableOp(
            resource=table.rows_pulled.local_handle, value=version
        )

    # Eager life.

    @property
    def follows(self):
        """Whether this worker follows the decisions of another one."""
        return self.following is not None and not self.following.is_chief

    def call(self, function, *args):
        """Calls what talks to servers; outlives servers that come back."""
        if self.recovery is None:
            return function(*args)
        return self.recovery.call(function, *args)

    def call_in_fit(self, function, *args):
        """The same of what Keras's `fit` calls."""
        if self.local is not None:
            self.local.see_to_end_of_fit()
        return self.call(function, *args)

    def function(self, shard, build, signature):
        """Makes a function on a server that any thread may call.

        Args:
          shard: Number of the server.
          build: Callable that builds it on the server's device, of tensors;
            returns a list of tensors.
          signature: List of `tf.TensorSpec`, its arguments.

        Returns:
          A callable that takes and returns NumPy arrays.
        """
        if self.clients is not None:
            return self.clients[shard].function(build, signature)
        # In a process of its own there are no other threads.
        function = tf.function(
            build, input_signature=signature, autograph=False
        )
        return lambda *values: [t.numpy() for t in function(*values)]

    @property
    def synchronizer(self):
        """The `Synchronizer`."""
        return self._synchronizer

    @property
    def committed(self):
        """How many variables this worker knows servers to hold, an int."""
        return self._synchronizer.committed

    def is_held(self):
        """Whether servers hold variables, of this worker or of another."""
        return self._synchronizer.held() > 0

    def commit(self):
        """Brings new variables and the servers to one state; see there."""
        self._tidy()
        self._synchronizer.commit()
        if self.gradient_counts is not None:
            self.gradient_counts.begin()

    def _tidy(self):
        self.freeing.tidy()
        if self.kernels is not None:
            self.kernels.tidy()

    def pull(self):
        """Refreshes all local replicas from the servers.

        In the midst of local steps they show what came last instead.
        """
        self._tidy()
        if self.local is None:
            self._synchronizer.pull_all()
        elif self.local.before_pull():
            self._synchronizer.pull_all()
            self.local.after_pull()

    def build_pull(self, variables):
        """Builds, in a traced function, the refreshing of `variables`."""
        self._synchronizer.build_pull(variables)

    def updates_applied(self):
        """Number of updates that each server has applied, a list of ints."""
        return self._synchronizer.versions()

    def steps_made(self):
        """Optimizer steps that have been made, an int.

        With local steps, the most that one worker has told the servers of.
        """
        if self.local is not None:
            return self.local.steps_made()
        return max(self.updates_applied())

    def collective_writes(self):
        """Scope in which every worker's eager assignments reach the servers.

        For values on which all workers agree.
        """
        return self._synchronizer.collective_writes()

    def watch(self, frame):
        """Takes note of a call of `fit`, by its frame."""
        self.fits += 1
        call = calls.Call(frame)
        if self.local is not None:
            self.local.watch(call)
        if self.coordination is not None:
            self.coordination.watch(call)
            if self.local is not None:
                self.local.begin_fit()

    def before_eager_read(self, variable):
        """Called before a replica is read eagerly."""
        if self.files is not None:
            refusals.before_read(self.files)
        if self.local is not None:
            self.local.before_read(variable)
        self._synchronizer.before_read(variable)

    def before_eager_write(self, variable):
        """Called before a replica is assigned eagerly."""
        if self.following is not None and self._synchronizer.holds(variable):
            self.following.before_write()
        if self.local is not None:
            self.local.before_read(variable)

    def after_eager_write(self, variable):
        """Called after a replica was assigned eagerly."""
        self._synchronizer.after_write(variable)
        if self.local is not None:
            self.local.after_write(variable)
