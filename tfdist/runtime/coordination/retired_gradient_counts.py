"""Counts of gradients of optimizers that nobody uses any more.

Their ledgers are freed with their models; what has become of the gradients of
each worker is added up on the first server.
"""

import tensorflow as tf

from tfdist.runtime.coordination import ledger as ledger_lib
from tfdist.runtime.coordination import shared_state
from tfdist.runtime.variables import traced_calls
from tfdist.runtime.variables import unused_models

# What is counted of gradients, and the field of a `State` that does.
COUNTS = {
    "pushed": "pushed",
    "accepted": "accepted",
    "dropped": "dropped",
    "nonfinite": "nonfinite",
    "staleness": "staleness_sum",
}


class RetiredGradientCounts:
    """One worker's view of the counts.

    Args:
      store: The `ParameterStore`.
      num_workers: Number of workers.
    """

    def __init__(self, store, num_workers):
        self._store = store
        self._num_workers = num_workers
        self._traced = traced_calls.Traced(store)
        # Of what this worker has let go of: names of ledgers that servers may
        # still hold.
        self._waiting = set()
        # Gradients of this process that those have accepted.
        self.own_accepted = 0
        # What was there when this worker looked last.
        self._seen = None

    def let_go(self, name, own_accepted):
        """This worker uses a ledger no more.

        Args:
          name: The ledger's.
          own_accepted: Gradients of this process that it has accepted.
        """
        self._waiting.add(name)
        self.own_accepted += own_accepted

    def were_freed(self, ordinals):
        """No server holds the ledgers of some step counters any more."""
        self._waiting = {
            name
            for name in self._waiting
            if ledger_lib.ordinal_of(name) not in ordinals
        }
        self.read()

    def build_add(self, names):
        """Builds: the counts of ledgers are added before these are freed.

        Args:
          names: Of all resources that are about to be freed.

        Returns:
          The operations.
        """
        parts = [name.split("/") for name in names]
        ledgers = [p[1] for p in parts if (p[0], *p[2:]) == ("ledger", "state")]
        if not ledgers:
            return []
        counts = self._build_counts(ledgers)
        counts.append(self._build_or_zeros(self._handle(), self._read))
        with tf.device(self._store.devices[0]):
            return [
                tf.raw_ops.AssignVariableOp(
                    resource=self._handle(), value=tf.add_n(counts)
                )
            ]

    def read(self):
        """By kind of count and worker, an int64 array."""
        key = ("retired", tuple(sorted(self._waiting)))
        total, seen = self._traced.call(key, self._build_read)
        self._seen = seen.numpy()
        return total.numpy()

    def restore(self):
        """Puts back what a first server has lost that was started again."""
        if self._seen is not None and self._seen.any():
            seen = tf.constant(self._seen)
            traced_calls.trace(self._build_restore, seen)(seen)

    def _build_restore(self, seen):
        store = self._store
        with tf.device(store.devices[0]):
            seen = tf.identity(seen)
        with tf.control_dependencies([seen.op]):
            lock = store.lock(0, unused_models.LOCK)
        with tf.control_dependencies([lock.op]):
            there = self._build_or_zeros(self._handle(), self._read)
            with tf.device(store.devices[0]):
                done = tf.raw_ops.AssignVariableOp(
                    resource=self._handle(), value=tf.maximum(there, seen)
                )
        with tf.control_dependencies([done]):
            store.unlock(0, lock)

    def _handle(self):
        shape = [len(COUNTS), self._num_workers]
        return self._store.resource(0, "retired", tf.int64, shape)

    def _build_read(self):
        store = self._store
        lock = store.lock(0, unused_models.LOCK)
        with tf.control_dependencies([lock.op]):
            counts = self._build_counts(self._waiting)
            retired = self._build_or_zeros(self._handle(), self._read)
            with tf.device(store.devices[0]):
                total = tf.add_n([*counts, retired])
        with tf.control_dependencies([total.op]):
            store.unlock(0, lock)
        with tf.device(store.worker_device):
            return tf.identity(total), tf.identity(retired)

    def _build_counts(self, names):
        """Builds: what ledgers have counted, those that are there."""
        return [
            self._build_or_zeros(one.handle(), lambda one=one: self._of(one))
            for one in (
                shared_state.SharedState(
                    self._store,
                    f"ledger/{name}",
                    self._num_workers,
                    attendance=None,
                    mailboxes=None,
                )
                for name in sorted(names)
            )
        ]

    def _build_or_zeros(self, handle, build):
        device = self._store.devices[0]
        shape = [len(COUNTS), self._num_workers]

        def on_server():
            with tf.device(device):
                return tf.ensure_shape(build(), shape)

        with tf.device(device):
            known = tf.raw_ops.VarIsInitializedOp(resource=handle)
            zeros = tf.zeros(shape, tf.int64)
        return tf.cond(known, on_server, lambda: zeros)

    def _read(self):
        return tf.raw_ops.ReadVariableOp(
            resource=self._handle(), dtype=tf.int64
        )

    def _of(self, shared):
        state = shared.read()
        return tf.stack([getattr(state, count) for count in COUNTS.values()])
