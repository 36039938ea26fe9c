"""Gradients that lie on servers and that nobody will take any more.

A worker that dies between bringing its gradient to the servers and telling the
ledger of it leaves one that no decision knows of; so does one that dies before
it could discard its own. Every server keeps the keys under which each worker
has last brought gradients. With each decision the ledger says up to which key
those of each worker are void (`events.fence`), and makes sure that none of
these is accepted later; who carries the decision out frees them.
"""

import tensorflow as tf

from tfdist.cluster import resource_values

# Of each worker: what it brings now, and what earlier attempts left.
_KEYS = 4


class OrphanedGradients:
    """The keys of gradients on servers, and up to which they were freed.

    Args:
      resource: Callable of server, name, dtype and shape that gives the handle
        of a resource of one ledger's.
      num_workers: Number of workers.
    """

    def __init__(self, resource, num_workers):
        self._resource = resource
        self._num_workers = num_workers

    def _staged(self, shard):
        return self._of_workers(shard, "staged", [_KEYS])

    def _freed(self, shard):
        return self._of_workers(shard, "freed", [])

    def _of_workers(self, shard, name, shape):
        # A snapshot of another number of workers has none of this name.
        name = f"of-{self._num_workers}/{name}"
        shape = [self._num_workers, *shape]
        return self._resource(shard, name, tf.int64, shape)

    def create(self, shard):
        """Builds, in the scope's device: no keys, where there are none yet."""
        shape = [self._num_workers, _KEYS]
        return [
            resource_values.build_put_if_missing(handle, zeros).op
            for handle, zeros in (
                (self._staged(shard), tf.zeros(shape, tf.int64)),
                (self._freed(shard), tf.zeros(shape[:1], tf.int64)),
            )
        ]

    def note(self, shard, worker, key):
        """Builds, on the server: a worker is about to bring a gradient.

        It alone writes its row, and without the server's lock.

        Args:
          shard: Number of the server.
          worker: Number of the worker.
          key: Scalar int64 tensor, larger than all before.

        Returns:
          The operation.
        """
        row = tf.concat([key[None], self.read(shard)[worker, :-1]], 0)
        return tf.raw_ops.ResourceScatterUpdate(
            resource=self._staged(shard), indices=[worker], updates=row[None]
        )

    def read(self, shard):
        """Builds, on the server: the keys, newest first.

        Returns:
          An int64 tensor of shape (num_workers, keys); 0 for none.
        """
        value = tf.raw_ops.ReadVariableOp(
            resource=self._staged(shard), dtype=tf.int64
        )
        return tf.ensure_shape(value, [self._num_workers, _KEYS])

    def free(self, shard, void, own, discard):
        """Builds, under the server's lock: void gradients are freed.

        Args:
          shard: Number of the server.
          void: Keys up to which gradients of each worker are void, or have
            been taken here, int64 vector.
          own: Key of this worker's gradient, which it sees to itself.
          discard: Callable that builds the freeing of what may lie under a
            key.
        """
        staged, freed = self.read(shard), self._freed(shard)
        before = tf.raw_ops.ReadVariableOp(resource=freed, dtype=tf.int64)
        before = tf.ensure_shape(before, [self._num_workers])
        stale = (staged > before[:, None]) & (staged <= void[:, None])
        keys = tf.boolean_mask(staged, stale & tf.not_equal(staged, own))

        def body(number):
            with tf.control_dependencies([discard(keys[number])]):
                return number + 1

        done = tf.while_loop(
            lambda number: number < tf.size(keys),
            body,
            [tf.zeros([], tf.int32)],
            parallel_iterations=1,
        )
        with tf.control_dependencies(done):
            tf.raw_ops.AssignVariableOp(
                resource=freed, value=tf.maximum(before, void)
            )
