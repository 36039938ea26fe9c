"""Counts of each worker's gradients where no ledger counts them.

They lie on every server, which counts what it has applied, and travel with the
fresh values: a server that is restored from a worker's replicas is given the
counts that belong to them.
"""

import time

import numpy as np
import tensorflow as tf

from tfdist.cluster import resource_values
from tfdist.null_methods import empty_list

# Vectors, by worker, that lie one after another on a server: gradients
# accepted, those that are not finite, the staleness of all that were accepted
# together, the life of the worker's process that sent the last one, and those
# of this life that were accepted.
_ACCEPTED, _NONFINITE, _STALENESS, _LIFE, _OF_LIFE = range(5)
_VECTORS = 5


class NoGradientCounts:
    """See `GradientCounts`, whose part it takes where a ledger counts."""

    is_kept = False
    clear = handles = put = read_on = pulled = set_pulled = empty_list


class GradientCounts:
    """Counts of accepted and dropped gradients of all workers.

    A server may be empty when a worker's process begins, and get back later
    what it held before. The worker's earlier processes are in these counts, so
    each process marks its own gradients with a number, its life.

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
        self._length = _VECTORS * num_workers
        self._life = time.time_ns()
        self._read_all = tf.function(self._build_read, autograph=False)
        # By server: what was there at this worker's last pull.
        self._pulled = [
            store.worker_variable(
                tf.zeros([self._length], tf.int64), f"pulled_counts_{k}"
            )
            for k in range(store.num_shards)
        ]

    def handle(self, shard):
        """The vectors on a server, one after another, as one variable."""
        # A snapshot of another number of workers has none of this name.
        name = f"gradients/of-{self._num_workers}"
        return self._store.resource(shard, name, tf.int64, [self._length])

    def handles(self, shard):
        """The vector on a server, a list; see `handle`."""
        return [self.handle(shard)]

    def clear(self, shard):
        """Builds, in the scope's device: there are none; the operations."""
        zeros = tf.zeros([self._length], tf.int64)
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
        accepted = tf.ones([], tf.int64)
        if finite is not None:
            accepted = tf.cast(finite, tf.int64)
        nonfinite = 1 - accepted
        if new is not None:
            accepted *= tf.cast(new, tf.int64)
            nonfinite *= tf.cast(new, tf.int64)
        handle, rows = self.handle(shard), self._rows()
        before = tf.raw_ops.ResourceGather(
            resource=handle, indices=rows, dtype=tf.int64
        )
        is_same_life = tf.cast(before[_LIFE] == self._life, tf.int64)
        kept = tf.stack([1, 1, 1, 0, is_same_life])
        more = tf.stack(
            [accepted, nonfinite, staleness * accepted, self._life, accepted]
        )
        tf.raw_ops.ResourceScatterUpdate(
            resource=handle, indices=rows, updates=before * kept + more
        )

    def _rows(self):
        """Positions of this worker's counts."""
        return [
            vector * self._num_workers + self._store.worker_id
            for vector in range(_VECTORS)
        ]

    def read_on(self, shard):
        """Builds the reading of the vector, in the scope's device; a list."""
        value = tf.raw_ops.ReadVariableOp(
            resource=self.handle(shard), dtype=tf.int64
        )
        value.set_shape([self._length])
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

    def applied(self):
        """Gradients of this process that were applied, by server, as pulled.

        Returns:
          A list of int.
        """
        return [self._applied(vectors.numpy()) for vectors in self._pulled]

    def _applied(self, vectors):
        mine = vectors[self._rows()]
        return int(mine[_OF_LIFE]) if mine[_LIFE] == self._life else 0

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
            for name, (accepted, nonfinite, staleness, *_) in zip(
                self._names.values(),
                found.reshape(_VECTORS, -1).T[list(self._names)],
                strict=True,
            )
        }

    def _build_read(self):
        counts = resource_values.build_read_or(
            self.handle(0), np.zeros(self._length, np.int64)
        )
        with tf.device(self._store.worker_device):
            return tf.identity(counts)
