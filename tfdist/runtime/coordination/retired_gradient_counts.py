"""Counts of gradients of optimizers that nobody uses any more.

Their ledgers are freed with their models; what has become of the gradients of
each worker is added up on the first server.
"""

import re

import numpy as np
import tensorflow as tf

from tfdist.cluster import resource_values
from tfdist.runtime.coordination import ledger as ledger_lib
from tfdist.runtime.coordination import shared_state
from tfdist.runtime.variables import traced_calls
from tfdist.runtime.variables import unused_models
from tfdist.synchronization import state as state_lib

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
        ledgers = [
            name.split("/")[1]
            for name in names
            if re.fullmatch(f"ledger/[^/]+/of-{self._num_workers}/state", name)
        ]
        if not ledgers:
            return []
        counts = self._build_counts(ledgers)
        counts.append(self._build_read_retired())
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
            there = self._build_read_retired()
            with tf.device(store.devices[0]):
                done = tf.raw_ops.AssignVariableOp(
                    resource=self._handle(), value=tf.maximum(there, seen)
                )
        with tf.control_dependencies([done]):
            store.unlock(0, lock)

    def _handle(self):
        # A snapshot of another number of workers has none of this name.
        name = f"retired/of-{self._num_workers}"
        shape = [len(COUNTS), self._num_workers]
        return self._store.resource(0, name, tf.int64, shape)

    def _build_read(self):
        store = self._store
        lock = store.lock(0, unused_models.LOCK)
        with tf.control_dependencies([lock.op]):
            counts = self._build_counts(self._waiting)
            retired = self._build_read_retired()
            with tf.device(store.devices[0]):
                total = tf.add_n([*counts, retired])
        with tf.control_dependencies([total.op]):
            store.unlock(0, lock)
        with tf.device(store.worker_device):
            return tf.identity(total), tf.identity(retired)

    def _build_counts(self, names):
        """Builds: what ledgers have counted, those that are there."""
        zeros = np.zeros(state_lib.size(self._num_workers), np.int64)
        counts = []
        for name in sorted(names):
            handle = shared_state.SharedState(
                self._store,
                shared_state.prefix(name, self._num_workers),
                self._num_workers,
                attendance=None,
                mailboxes=None,
            ).handle()
            vector = resource_values.build_read_or(handle, zeros)
            with tf.device(self._store.devices[0]):
                state = state_lib.State.unpack(vector, self._num_workers)
                counts.append(
                    tf.stack([getattr(state, key) for key in COUNTS.values()])
                )
        return counts

    def _build_read_retired(self):
        zeros = np.zeros([len(COUNTS), self._num_workers], np.int64)
        return resource_values.build_read_or(self._handle(), zeros)
