"""The part of a training step that runs on one server, under its lock."""

import contextlib

import tensorflow as tf

from tfdist.parameter_server.variables import active


class Section:
    """The part of a step that runs on one server, under its lock."""

    def __init__(self, store, shard, graph):
        self._store = store
        self.shard = shard
        self._graph = graph
        # Operations on the worker whose results the section needs.
        self.late_inputs = []

    @contextlib.contextmanager
    def entered(self):
        """Makes handles those of the primaries, and ops run on the server."""
        previous, active.section = active.section, self
        try:
            with tf.device(self._store.devices[self.shard]):
                yield
        finally:
            active.section = previous

    def handle(self, variable):
        """The primary's handle of a `ReplicaVariable` on this server."""
        self._store.claim(variable, self.shard)
        with self._graph.as_default():
            return self._store.handle(variable, self.shard)

    def read_local(self, variable):
        """The value of a worker-local variable, sent before the lock."""
        if tf.compat.v1.get_default_graph() is not self._graph:
            return read_replica(variable)
        with tf.control_dependencies(None):
            with tf.device(self._store.worker_device):
                value = read_replica(variable)
            value = tf.identity(value)
        self.late_inputs.append(value.op)
        return value


class Outbox:
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
    """Turns an argument of the worker into its counterpart on a server."""

    def __init__(self, lifter, live, outbox):
        self._lifter = lifter
        self._live = live
        self._outbox = outbox

    def __call__(self, argument):
        """Returns a function of (sent tensors, section) -> counterpart."""
        if isinstance(argument, tf.IndexedSlices):
            values = self(argument.values)
            indices = self(argument.indices)
            shape = argument.dense_shape
            dense = self(shape) if shape is not None else None
            return lambda sent, section: tf.IndexedSlices(
                values(sent, section),
                indices(sent, section),
                dense(sent, section) if dense is not None else None,
            )
        if not isinstance(argument, tf.Tensor):
            # A variable means its primary there; a Python value is itself.
            return lambda sent, section: argument
        plan = self._lifter.plan(argument, self._live)
        if plan is None:
            position = self._outbox.add(argument)
            return lambda sent, section: sent[position]
        positions = {t.name: self._outbox.add(t) for t in plan.inputs}
        return lambda sent, section: self._lifter.build(
            plan,
            {name: sent[position] for name, position in positions.items()},
            section,
        )


def read_replica(variable):
    """The value of the local replica of `variable`, wherever this is built."""
    return tf.raw_ops.ReadVariableOp(
        resource=variable.local_handle, dtype=variable.dtype
    )
