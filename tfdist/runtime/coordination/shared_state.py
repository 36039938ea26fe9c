"""The state of a synchronization on the first server, changed under one lock.

The state (`tfdist.synchronization.state.State`) lives there as one vector, so
that it changes in one assignment. Whoever has an event to tell takes the lock,
reads, decides, assigns, and wakes those who may go on, all on that server; a
worker that dies in between leaves the state as it was before or as it is after.
"""

import tensorflow as tf

from tfdist.runtime.variables import resources
from tfdist.synchronization import state as state_lib


def prefix(ledger, num_workers):
    """Prefix of the names of what decides in a ledger.

    The state has a part for each worker. A snapshot of another number of
    workers has nothing of these names: decisions begin anew.

    Args:
      ledger: Name of the `Ledger`.
      num_workers: Number of workers.
    """
    return f"ledger/{ledger}/of-{num_workers}"


class SharedState:
    """Builds what reads and changes the state of one ledger.

    Args:
      store: The `ParameterStore`.
      name: The same on all workers, and this ledger's alone.
      num_workers: Number of workers.
      attendance: Callable without arguments that builds, on the first server,
        the reading of an `Attendance`.
      mailboxes: The `WakeUpQueues` in which workers wait; None if nobody does.

    Attributes:
      lock_name: Name of the lock of the state, on the first server.
    """

    def __init__(self, store, name, num_workers, *, attendance, mailboxes):
        self.lock_name = f"{name}/lock"
        self._store = store
        self._name = name
        self._num_workers = num_workers
        self._attendance = attendance
        self._mailboxes = mailboxes

    def on_server(self):
        """The scope of the first server's device."""
        return tf.device(self._store.devices[0])

    def handle(self):
        """Handle of the packed `State`, on the first server."""
        size = state_lib.size(self._num_workers)
        return self._store.resource(0, f"{self._name}/state", tf.int64, [size])

    def read(self):
        """Builds the reading of the `State`, under its lock."""
        return state_lib.State.unpack(self.read_vector(), self._num_workers)

    def read_vector(self):
        """Builds the same, of the packed `State`."""
        vector = tf.raw_ops.ReadVariableOp(
            resource=self.handle(), dtype=tf.int64
        )
        return tf.ensure_shape(vector, [state_lib.size(self._num_workers)])

    def as_numpy(self, vector):
        """The `State`, of NumPy values, that an array is."""
        return state_lib.State.unpack_array(vector, self._num_workers)

    def transact(self, change, after):
        """Changes the state under its lock.

        Args:
          change: Callable of a packed `State` and an `Attendance` that
            returns a new one; a bool vector, who need not wait any more, or
            None for nobody; and a tuple of tensors.
          after: Operations to wait for before the lock is taken.

        Returns:
          The tuple of tensors, and the operation that frees the lock.
        """
        graph = tf.compat.v1.get_default_graph()
        with tf.control_dependencies(after):
            lock = self._store.lock(0, self.lock_name)
        before = len(graph.get_operations())
        with tf.control_dependencies([lock.op]), self.on_server():
            attendance = self._attendance()
            new, woken, results = change(self.read_vector(), attendance)
            results = tuple(tf.identity(result) for result in results)
            assigned = tf.raw_ops.AssignVariableOp(
                resource=self.handle(), value=new
            )
            with tf.control_dependencies([assigned]):
                if woken is not None and self._mailboxes is not None:
                    self._mailboxes.wake(woken)
        done = resources.effects(graph.get_operations()[before:])
        done += [result.op for result in results]
        with tf.control_dependencies(done):
            return results, self._store.unlock(0, lock)
