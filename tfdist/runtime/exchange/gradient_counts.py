"""Counts of each worker's gradients where no ledger counts them.

They lie on every server, which counts what it has applied, and travel with the
fresh values: a server that is restored from a worker's replicas is given the
counts that belong to them.
"""

import tensorflow as tf


class NoGradientCounts:
    """See `GradientCounts`, whose part it takes where a ledger counts."""

    is_kept = False

    def clear(self, shard):
        """Builds nothing, a list; as the others do."""
        del shard
        return []

    def handles(self, shard):
        """Builds nothing, a list."""
        del shard
        return []

    def put(self, shard, values):
        """Builds nothing."""
        del shard, values
        return []

    def read_on(self, shard):
        """Builds nothing."""
        del shard
        return []

    def pulled(self, shard):
        """Builds nothing."""
        del shard
        return []

    def set_pulled(self, shard, values):
        """Builds nothing."""
        del shard, values
        return []

    def begin(self):
        """Does nothing."""


class GradientCounts:
    """Counts of accepted and dropped gradients of all workers.

    Args:
      store: The `ParameterStore`.
      num_workers: Number of workers.
      worker_names: Dict of the workers' numbers to their names: of those
        whose gradients go to the same servers.
    """

    is_kept = True

    def __init__(self, store, num_workers, worker_names):
        self._store = store
        self._names = worker_names
        self._num_workers = num_workers
        self._read_all = tf.function(self._build_read, autograph=False)
        # By server: what was there at this worker's last pull.
        self._pulled = [
            store.worker_variable(
                tf.zeros([3 * num_workers], tf.int64), f"pulled_counts_{k}"
            )
            for k in range(store.num_shards)
        ]
        # By server: this worker's in earlier lives of its process.
        self._before = None

    def handle(self, shard):
        """The vector on a server, by worker.

        Gradients accepted, then those that are not finite, then the staleness
        of all that were accepted, together.
        """
        return self._store.resource(
            shard, "gradients", tf.int64, [3 * self._num_workers]
        )

    def handles(self, shard):
        """The vector on a server, a list; see `handle`."""
        return [self.handle(shard)]

    def clear(self, shard):
        """Builds, in the scope's device: there are none; the operations."""
        zeros = tf.zeros([3 * self._num_workers], tf.int64)
        return self.put(shard, [zeros])

    def put(self, shard, values):
        """Builds, in the scope's device, what `values` were read as."""
        return [
            tf.raw_ops.AssignVariableOp(
                resource=self.handle(shard), value=value
            )
            for value in values
        ]

    def note(self, shard, finite, staleness, new=None):
        """Builds, on the server: one more gradient of this worker.

        Args:
          shard: Number of the server.
          finite: Whether it was applied, a scalar bool tensor, or None.
          staleness: Updates that it was late by, a scalar int64 tensor.
          new: Whether it counts, a scalar bool tensor; not that of a batch
            that the server has applied before. None if it does.
        """
        one = tf.ones([], tf.int64)
        if new is not None:
            one = tf.cast(new, tf.int64)
            staleness *= one
        mine = row = self._store.worker_id
        if finite is not None:
            row += self._num_workers * (1 - tf.cast(finite, tf.int64))
            staleness *= tf.cast(finite, tf.int64)
        tf.raw_ops.ResourceScatterAdd(
            resource=self.handle(shard),
            indices=tf.stack([row, mine + 2 * self._num_workers]),
            updates=tf.stack([one, staleness]),
        )

    def read_on(self, shard):
        """Builds the reading of the vector, in the scope's device; a list."""
        value = tf.raw_ops.ReadVariableOp(
            resource=self.handle(shard), dtype=tf.int64
        )
        value.set_shape([3 * self._num_workers])
        return [value]

    def pulled(self, shard):
        """The vector at this worker's last pull, a list."""
        return [self._pulled[shard].read_value()]

    def set_pulled(self, shard, values):
        """Sets what `pulled` gives; returns the operations."""
        return [
            tf.raw_ops.AssignVariableOp(
                resource=self._pulled[shard].local_handle, value=value
            )
            for value in values
        ]

    def begin(self):
        """Counts what was pulled so far as of earlier lives of this process."""
        if self._before is None:
            self._before = self._accepted_here()

    def applied(self):
        """Gradients of this process that were applied, by server, as pulled.

        Returns:
          A list of int.
        """
        before = self._before or [0] * self._store.num_shards
        here = self._accepted_here()
        return [now - then for now, then in zip(here, before, strict=True)]

    def _accepted_here(self):
        row = self._store.worker_id
        return [int(vector.numpy()[row]) for vector in self._pulled]

    def read(self):
        """Returns a dict of worker name to a dict of ints.

        These are `pushed`, `accepted`, `dropped`, `nonfinite` and
        `staleness`, as the first server has counted them.
        """
        found = self._store.call(self._read_all).numpy()
        return {
            name: {
                "pushed": int(accepted + nonfinite),
                "accepted": int(accepted),
                "dropped": int(nonfinite),
                "nonfinite": int(nonfinite),
                "staleness": int(staleness),
            }
            for name, (accepted, nonfinite, staleness) in zip(
                self._names.values(),
                found.reshape(3, -1).T[list(self._names)],
                strict=True,
            )
        }

    def _build_read(self):
        handle = self.handle(0)

        def read():
            with tf.device(self._store.devices[0]):
                return self.read_on(0)[0]

        with tf.device(self._store.devices[0]):
            known = tf.raw_ops.VarIsInitializedOp(resource=handle)
            nothing = tf.zeros([3 * self._num_workers], tf.int64)
            counts = tf.cond(known, read, lambda: nothing)
        with tf.device(self._store.worker_device):
            return tf.identity(counts)
