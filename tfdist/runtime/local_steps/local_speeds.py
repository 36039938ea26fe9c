"""Speeds of workers, for those that take fewer steps if they are slow."""

import tensorflow as tf

from tfdist.runtime.exchange import records
from tfdist.runtime.variables.server_scope import read_replica

FORGOTTEN_AFTER_PERIODS = 20.0
"""Periods of a worker, whole ones, after which it forgets older speeds."""


class Speeds:
    """Local steps per second of one optimizer on all workers, on a server.

    Each worker measures its own from the end of one exchange to the beginning
    of the next, leaves it there, and gets those of the others.

    Args:
      store: The `ParameterStore`.
      variable_scope: Callable that gives the scope in which variables of
        servers are made.
      num_workers: Number of workers.
      worker_id: Number of this one.

    Attributes:
      variable: The variable with the speeds and with when they were measured,
        in seconds since the epoch, float64 `(num_workers, 2)`.
    """

    def __init__(self, store, variable_scope, num_workers, worker_id):
        self._worker = worker_id
        self._began = store.worker_variable(
            tf.zeros([], tf.float64), "period_began"
        )
        with variable_scope():
            self.variable = tf.Variable(
                tf.zeros([num_workers, 2], tf.float64),
                trainable=False,
                aggregation=tf.VariableAggregation.MEAN,
                name="local_steps_per_second",
            )
        self.variable.assigned_by_workers = True
        self.variable.is_own = True
        self.variable.is_by_worker = True

    def share_of(self, steps):
        """Computes this worker's share of `steps`, by its speed.

        Args:
          steps: Scalar int64 tensor.

        Returns:
          `floor(v / v_max * steps)`, at least 1, a scalar int64 tensor; all of
          them as long as this worker's speed is not known. A worker that has
          not been heard of for many periods is not among those of v_max.
        """
        speeds, times = tf.unstack(read_replica(self.variable), axis=1)
        mine = speeds[self._worker]
        period = tf.cast(steps, tf.float64) / tf.maximum(mine, 1e-30)
        oldest = times[self._worker] - FORGOTTEN_AFTER_PERIODS * period
        most = tf.reduce_max(tf.where(times >= oldest, speeds, 0.0))
        share = tf.where(mine > 0, mine / tf.maximum(most, 1e-30), 1.0)
        # The quotient of equal speeds times steps is not to fall below it.
        steps = tf.floor(share * tf.cast(steps, tf.float64) + 1e-9)
        return tf.maximum(tf.cast(steps, tf.int64), 1)

    def record(self, steps):
        """Returns the record for the server of this speed, a `Mutation`.

        Args:
          steps: Steps since the exchange before, a scalar int64 tensor.
        """
        began = self._began.read_value()
        seconds = tf.maximum(tf.timestamp() - began, 1e-9)
        speed = tf.cast(steps, tf.float64) / seconds
        speed = tf.where(began > 0, speed, 0.0)
        row = tf.stack([speed, tf.timestamp()])
        mine = tf.IndexedSlices(row[None], tf.constant([self._worker]))
        return records.Mutation(self.variable, "scatter_update", mine)

    def begin(self):
        """Builds: an exchange has ended, or a call of `fit` begins."""
        self._began.assign(tf.timestamp(), read_value=False)
