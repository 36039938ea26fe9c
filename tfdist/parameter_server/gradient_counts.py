"""Counts of each worker's gradients where no ledger counts them.

They lie on the first server, so that they outlive the worker.
"""

import tensorflow as tf

_KINDS = ("accepted", "nonfinite")


class GradientCounts:
    """What has become of the gradients of all workers.

    Args:
      store: The `ParameterStore`.
      worker_names: Dict of the workers' numbers to their names: of those
        whose gradients go to the same servers.
    """

    def __init__(self, store, worker_names):
        self._store = store
        self._names = worker_names
        self._is_prepared = False
        self._read_all = tf.function(self._build_read, autograph=False)

    def _counter(self, kind, worker):
        return self._store.counter(f"gradients/{worker}/{kind}", 0)

    def prepare(self):
        """Makes this worker's counters on the server if there are none."""
        if self._is_prepared:
            return
        with tf.init_scope():
            prepare = tf.function(self._build_prepare, autograph=False)
            prepare.get_concrete_function()()
        self._is_prepared = True

    def _build_prepare(self):
        for kind in _KINDS:
            with tf.device(self._store.devices[0]):
                handle = self._counter(kind, self._store.worker_id).handle
                known = tf.raw_ops.VarIsInitializedOp(resource=handle)

            def begin(handle=handle):
                with tf.device(self._store.devices[0]):
                    tf.raw_ops.AssignVariableOp(
                        resource=handle, value=tf.zeros([], tf.int64)
                    )
                return True

            tf.cond(known, lambda: False, begin)

    def note(self, finite):
        """Builds, on the first server: one more gradient of this worker.

        Args:
          finite: Whether it was accepted, a scalar bool tensor.
        """
        accepted = tf.cast(finite, tf.int64)
        for kind, number in zip(_KINDS, (accepted, 1 - accepted), strict=True):
            tf.raw_ops.AssignAddVariableOp(
                resource=self._counter(kind, self._store.worker_id).handle,
                value=number,
            )

    def read(self):
        """Returns a dict of worker name to a dict of ints.

        These are `pushed`, `accepted`, `dropped` and `nonfinite`.
        """
        found = self._read_all().numpy()
        return {
            name: {
                "pushed": int(accepted + nonfinite),
                "accepted": int(accepted),
                "dropped": int(nonfinite),
                "nonfinite": int(nonfinite),
            }
            for name, (accepted, nonfinite) in zip(
                self._names.values(), found, strict=True
            )
        }

    def _build_read(self):
        with tf.device(self._store.devices[0]):
            rows = [
                tf.stack([self._read(kind, worker) for kind in _KINDS])
                for worker in self._names
            ]
            stacked = tf.stack(rows)
        with tf.device(self._store.worker_device):
            return tf.identity(stacked)

    def _read(self, kind, worker):
        counter = self._counter(kind, worker)

        def read():
            with tf.device(self._store.devices[0]):
                return counter.read()

        known = tf.raw_ops.VarIsInitializedOp(resource=counter.handle)
        # A worker that has not begun has none.
        return tf.cond(known, read, lambda: tf.zeros([], tf.int64))
