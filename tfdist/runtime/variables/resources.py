"""Resources on servers, by the names that all workers know them by."""

import weakref

import numpy as np
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.cluster import resource_values
from tfdist.runtime.variables.variables import active


class Here:
    """Stand-in for a `ServerClient` where the server is this process."""

    def function(self, build, signature):
        """See `ServerClient.function`; here there are no other threads."""
        function = tf.function(
            build, input_signature=signature, autograph=False
        )
        return lambda *values: [t.numpy() for t in function(*values)]


class Counter:
    """An int64 on a server, used in the graph that is being built."""

    def __init__(self, handle):
        self.handle = handle

    def read(self):
        """Its value, a scalar int64 tensor."""
        value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=tf.int64)
        value.set_shape([])
        return value

    def read_or_zero(self):
        """Its value, 0 where a server that was started again has lost it."""
        return resource_values.build_read_or(self.handle, np.int64(0))

    def add(self, amount):
        """Adds `amount` (int or scalar int64 tensor)."""
        return tf.raw_ops.AssignAddVariableOp(
            resource=self.handle, value=tf.constant(amount, tf.int64)
        )

    def set(self, value):
        """Sets it to `value` (int or scalar int64 tensor)."""
        return tf.raw_ops.AssignVariableOp(
            resource=self.handle, value=tf.convert_to_tensor(value, tf.int64)
        )


def one_after(operations, device):
    """Builds one operation that runs after all of `operations`.

    What comes after all of them then comes after this one. Where that is many
    operations too, as many edges as the product of both numbers would burden
    each step.

    Args:
      operations: List of operations.
      device: Name of the device on which it runs.
    """
    with tf.device(device), tf.control_dependencies(operations):
        return tf.no_op()


def effects(operations):
    """Those of `operations` that read or change something, a list.

    What frees a lock comes after all of them.
    """
    return [
        op
        for op in operations
        if op.op_def.is_stateful and op.type != "VarHandleOp"
    ]


class Resources:
    """Handles of what is on servers, in the graph that is being built.

    Handles are made again in each traced function (a graph that owns its
    handles runs faster, and a worker that holds no eager handle on a server
    survives that server).

    Args:
      namespace: Prefix of the resources' names, the same on all workers.
      devices: List of the servers' devices, at least one.
      clients: A `ServerClient` for each server; default: this process, which
        has no other threads.
    """

    def __init__(self, namespace, devices, clients=None):
        self._namespace = namespace
        self.devices = tuple(devices)
        self._clients = clients or [Here()] * self.num_shards
        self._handles = weakref.WeakKeyDictionary()
        # What has ever been named: (server, shared name) to dtype.
        self.known = {}

    @property
    def num_shards(self):
        """Number of servers."""
        return len(self.devices)

    def _resource(self, shard, name, build):
        graph = tf.compat.v1.get_default_graph()
        if active.section is not None:
            # One handle for all branches and loops of a section: TensorFlow
            # keeps in order what has a handle in common.
            graph = active.section.graph
        # By name: a tensor would keep its graph, which is the key.
        handles = self._handles.setdefault(graph, {})
        if (shard, name) in handles:
            return graph.get_tensor_by_name(handles[shard, name])
        with graph.as_default(), tf.control_dependencies(None):
            with tf.device(self.devices[shard]):
                handle = build(self.name_of(name))
        private_tensorflow.run_independently(handle.op)
        handles[shard, name] = handle.name
        return handle

    def name_of(self, name):
        """The name that all workers know a resource by."""
        return f"{self._namespace}/{name}"

    def short_name(self, name):
        """Returns the name that `name_of` was given."""
        return name.removeprefix(f"{self._namespace}/")

    def resource(self, shard, name, dtype, shape):
        """Handle of the resource `name` on server `shard`."""
        self.known[shard, self.name_of(name)] = tf.as_dtype(dtype)
        return self._resource(
            shard,
            name,
            lambda shared_name: tf.raw_ops.VarHandleOp(
                dtype=dtype, shape=shape, shared_name=shared_name
            ),
        )

    def handle(self, variable, shard, piece=None):
        """Handle of `variable`, or of a `Piece` of it, on server `shard`."""
        name = self.variable_name(variable, piece)
        shape = variable.shape_of(piece)
        return self.resource(shard, name, variable.dtype, shape)

    def variable_name(self, variable, piece=None):
        """Returns the name of `variable`, or of a `Piece` of it, on servers."""
        name = f"variable/{variable.ordinal}"
        if variable.is_by_worker:
            # A snapshot of another number of workers has none of this name.
            name = f"{name}/of-{variable.shape[0]}"
        return name if piece is None else f"{name}/{piece.number}"

    def counter(self, name, shard):
        """The `Counter` called `name` on server `shard`."""
        return Counter(self.resource(shard, name, tf.int64, []))

    def queue(self, shard, name):
        """Handle of an unbounded queue of int64 scalars on a server."""
        return self._resource(
            shard,
            name,
            lambda shared_name: tf.raw_ops.FIFOQueueV2(
                component_types=[tf.int64],
                shapes=[[]],
                shared_name=shared_name,
            ),
        )

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
        return self._clients[shard].function(build, signature)

    def lock(self, shard, name="lock"):
        """Takes a lock of server `shard`; returns what `unlock` needs."""
        mutex = self._resource(
            shard,
            name,
            lambda shared_name: tf.raw_ops.MutexV2(shared_name=shared_name),
        )
        with tf.device(self.devices[shard]):
            return tf.raw_ops.MutexLock(mutex=mutex)

    def unlock(self, shard, lock):
        """Frees the lock; callers tie it to all that must come before."""
        with tf.device(self.devices[shard]):
            unlock = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        private_tensorflow.run_independently(unlock)
        return unlock
