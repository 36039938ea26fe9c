"""The part of a training step that runs on one server, under its lock."""

import contextlib

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.program_error import ProgramError
from tfdist.runtime.variables import row_scope
from tfdist.runtime.variables.variables import active


class ServerScope:
    """The part of a step that runs on one server, under its lock."""

    def __init__(self, store, shard, graph):
        self._store = store
        self.shard = shard
        self.graph = graph
        # Number of the piece that is being updated, where a variable is split.
        self.piece_number = None
        # The rows that tables mean; None for all.
        self.row_scope = None
        # Counters that were read, by graph and `ref()`, and what is made of
        # them, by its name; None: built each time.
        self._counters = None
        # Counters with another value than that on the server, by `ref()`.
        self._known_counters = {}
        # Operations whose results come from the worker and are needed here.
        self.late_inputs = []
        # What has been sent of worker-local variables, by their `ref()`.
        self.local_values = {}
        # The same of the worker whose settings an update takes.
        self._settings = {}

    @contextlib.contextmanager
    def entered(self):
        """Makes handles those of the primaries, and ops run on the server."""
        previous, active.section = active.section, self
        try:
            with tf.device(self._store.devices[self.shard]):
                yield
        finally:
            active.section = previous

    @contextlib.contextmanager
    def on_piece(self, piece):
        """Makes split variables mean their piece of that number.

        Args:
          piece: A `Piece`, or None for variables that are whole.
        """
        self.piece_number = None if piece is None else piece.number
        try:
            yield
        finally:
            self.piece_number = None

    @contextlib.contextmanager
    def on_rows(self, rows):
        """Makes tables mean some of their rows.

        Args:
          rows: Their numbers on this server, `(n,)`, each once.
        """
        self.row_scope = row_scope.RowScope(rows)
        try:
            yield
        finally:
            self.row_scope = None

    @contextlib.contextmanager
    def counters_read_once(self):
        """Has step counters read once for all that is built in the scope.

        An optimizer's rule computes scalars of it for each variable. They are
        the same, and TensorFlow computes what is the same once; but it cannot
        know that of two readings.
        """
        self._counters = {}
        try:
            yield
        finally:
            self._counters = None

    def read_counter(self, variable, read):
        """The value of a step counter.

        Args:
          variable: The `ReplicaVariable`.
          read: Callable without arguments that builds the reading.
        """
        if variable.ref() in self._known_counters:
            return self._known_counters[variable.ref()]
        return self.once(variable.ref(), read)

    def once(self, name, build):
        """Returns a tensor of counters, built once in `counters_read_once`.

        Args:
          name: What tells it from others.
          build: Callable without arguments that builds it.
        """
        if self._counters is None:
            return build()
        key = tf.compat.v1.get_default_graph(), name
        if key not in self._counters:
            self._counters[key] = build()
        return self._counters[key]

    @contextlib.contextmanager
    def with_counter(self, variable, value):
        """Makes a step counter have a given value.

        Args:
          variable: The `ReplicaVariable`.
          value: A scalar tensor of its type.
        """
        self._known_counters[variable.ref()] = value
        try:
            yield
        finally:
            del self._known_counters[variable.ref()]

    @contextlib.contextmanager
    def with_settings(self, values):
        """Makes worker-local variables those of another worker.

        Args:
          values: A dict of `ref()` to tensor on this server.
        """
        self._settings = values
        try:
            yield
        finally:
            self._settings = {}

    @property
    def is_on_piece(self):
        """Whether split variables mean one of their pieces."""
        return self.piece_number is not None

    def piece_of(self, variable):
        """The `Piece` of a split variable that is meant here.

        Raises:
          ProgramError: If none is, or it is not on this server.
        """
        if self.piece_number is not None:
            piece = variable.pieces[self.piece_number]
            if piece.shard == self.shard:
                return piece
        raise ProgramError(
            f"{variable.name!r} is split over servers by variable_partitioner, "
            "and an update of another variable uses it."
        )

    def handle(self, variable):
        """The primary's handle of a `ReplicaVariable` on this server."""
        piece = None
        if variable.pieces:
            piece = self.piece_of(variable)
        else:
            self._store.claim(variable, self.shard)
        return self._store.handle(variable, self.shard, piece)

    def counter(self, name):
        """The `Counter` of that name on this server."""
        return self._store.counter(name, self.shard)

    def resource(self, name, dtype, shape):
        """Handle of the resource of that name on this server."""
        return self._store.resource(self.shard, name, dtype, shape)

    def read_local(self, variable):
        """The value of a worker-local variable, sent before the lock."""
        if variable.ref() in self._settings:
            return self._settings[variable.ref()]
        # Once: an optimizer reads its learning rate for each variable, and
        # each tensor sent by itself costs as much as some ten operations.
        if variable.ref() not in self.local_values:
            with self.graph.as_default(), tf.control_dependencies(None):
                with tf.device(self._store.worker_device):
                    value = read_replica(variable)
                # TensorFlow reads variables outside of all device scopes.
                with tf.device(self._store.devices[self.shard]):
                    value = tf.identity(value)
            self.late_inputs.append(value.op)
            self.local_values[variable.ref()] = value
        return self.local_values[variable.ref()]

    def now(self):
        """The server's clock, seconds since the epoch as scalar float64."""
        with tf.device(self._store.devices[self.shard]):
            time = tf.timestamp()
        private_tensorflow.run_independently(time.op)
        return time


class SendBuffer:
    """Tensors to be sent to one server, each once."""

    def __init__(self):
        self.tensors = []
        self._positions = {}

    def add(self, tensor):
        """Returns the position of `tensor` among those sent."""
        if tensor.name not in self._positions:
            self._positions[tensor.name] = len(self.tensors)
            self.tensors.append(tensor)
        return self._positions[tensor.name]


class Resolver:
    """Turns an argument of the worker into its counterpart on a server.

    Args:
      lifter: The `Lifter` of the graph.
      live: Ordinals of the variables to be read afresh.
      outbox: The `SendBuffer` to the server.
      variable: The variable that is updated or assigned.
      piece: The `Piece` of it, or None; tensors of the variable's shape are
        cut to it.
    """

    def __init__(self, lifter, live, outbox, variable, piece):
        # What is sent as it is: positions in the outbox, pairs of them
        # (values, indices) for `tf.IndexedSlices`.
        self.plain = []
        # The same of what is sent for values that are computed there, but for
        # constants.
        self.inputs = []
        self._shape = variable.shape
        self._piece = piece
        self._lifter = lifter
        self._live = live
        self._outbox = outbox

    def __call__(self, argument, lift=True):
        """Returns a function of (sent tensors, section) -> counterpart.

        Args:
          argument: Of an update or assignment, anything.
          lift: Whether to compute it on the server where it depends on state
            there; a gradient is the one of what the worker has pulled.
        """
        if isinstance(argument, tf.IndexedSlices):
            if self._piece is not None:
                argument = self._piece.slices_of(argument, self._shape)
            before, self.plain = self.plain, []
            values = self(argument.values, lift)
            indices = self(argument.indices, lift)
            pair = tuple(self.plain)
            shape = argument.dense_shape
            dense = self(shape, lift) if shape is not None else None
            self.plain = [*before, pair]
            return lambda sent, section: tf.IndexedSlices(
                values(sent, section),
                indices(sent, section),
                dense(sent, section) if dense is not None else None,
            )
        if not isinstance(argument, tf.Tensor):
            # A variable means its primary there; a Python value is itself.
            return lambda sent, section: argument
        plan = self._lifter.plan(argument, self._live) if lift else None
        if plan is None:
            position = self._add(argument)
            self.plain.append(position)
            return lambda sent, section: sent[position]
        return self.planned(plan)

    def planned(self, plan):
        """Returns the same function for what a `Plan` computes there."""
        positions = {t.name: self._add(t) for t in plan.inputs}
        self.inputs += [
            positions[t.name] for t in plan.inputs if t.op.type != "Const"
        ]
        return lambda sent, section: self._lifter.build(
            plan,
            {name: sent[position] for name, position in positions.items()},
            section,
        )

    def _add(self, tensor):
        if self._piece is not None and tensor.shape == self._shape:
            tensor = self._piece.of(tensor)
        return self._outbox.add(tensor)


def read_replica(variable):
    """The value of the local replica of `variable`, wherever this is built."""
    with tf.device(variable.local_handle.device):
        return tf.raw_ops.ReadVariableOp(
            resource=variable.local_handle, dtype=variable.dtype
        )
