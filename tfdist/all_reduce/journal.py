"""The record that a worker keeps of its steps."""

import contextlib

import numpy as np
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.cluster import collective_sums
from tfdist.exchange_record import ExchangeRecord

# Rows kept on the worker between two looks at them.
CAPACITY = 8192


class StepJournal:
    """A ring buffer of the last steps, written inside them.

    Args:
      num_workers: Number of workers.
      extras: Number of the figures of a step that `figures` makes sense of.
    """

    def __init__(self, num_workers, extras=1):
        # Bytes by number of a lane; each row has its lane's number.
        self._bytes = []
        self._num_workers = num_workers
        hidden = private_tensorflow.hidden_variable
        # When a step began to wait for others, and when it ended, in seconds
        # since the epoch; updates by then; whether it counts; its lane; extras.
        self._rows = hidden(tf.zeros([CAPACITY, 5 + extras], tf.float64))
        self._count = hidden(tf.zeros([], tf.int64))
        self._dropped = hidden(tf.zeros([], tf.int64))
        self._updates = hidden(tf.zeros([], tf.int64))
        self._read = 0

    def add(self, sizes):
        """Returns the number of a new lane that sums vectors of such bytes."""
        sent = collective_sums.bytes_sent(sizes, self._num_workers)
        self._bytes.append(sent)
        return len(self._bytes) - 1

    def write(self, *, began, ended, accepted, lane, extras):
        """Builds the note of a step.

        Args:
          began: Scalar float64, seconds since the epoch.
          ended: Any tensor that is there when the sums are.
          accepted: Whether this worker's part counts, scalar bool.
          lane: Number of the lane, from `add`.
          extras: Scalars, as many as there are.
        """
        with tf.control_dependencies([ended]):
            now = tf.timestamp()
            row = [began, now, self._updates, accepted, lane, *extras]
            row = tf.stack([tf.cast(x, tf.float64) for x in row])
            place = self._count.read_value() % CAPACITY
            self._rows.scatter_update(tf.IndexedSlices(row[None], place[None]))
            self._count.assign_add(1, read_value=False)
            dropped = tf.cast(tf.logical_not(accepted), tf.int64)
            self._dropped.assign_add(dropped, read_value=False)

    @contextlib.contextmanager
    def counting_update(self, optimizer):
        """Scope of an optimizer's step, which is counted if it is an update.

        A step that only accumulates, or that a loss scale skips, is none.

        Args:
          optimizer: The Keras optimizer.
        """
        before = _iterations(optimizer)
        yield
        made = _iterations(optimizer) - before
        self._updates.assign_add(made, read_value=False)

    @property
    def updates(self):
        """Optimizer steps that all have made, int."""
        return int(self._updates.numpy())

    def set_updates(self, number):
        """Sets `updates`, which a checkpoint has."""
        self._updates.assign(number)

    @property
    def count(self):
        """Steps of this worker, of each optimizer or of none, int."""
        return int(self._count.numpy())

    @property
    def dropped(self):
        """Those of them that were not finite, int."""
        return int(self._dropped.numpy())

    @property
    def bytes_between(self):
        """Bytes that came between steps, which no record has: none, int."""
        return 0

    def lanes_since(self, count):
        """The numbers of the lanes of the steps after `count`, a set."""
        numbers = np.arange(max(count, self.count - CAPACITY), self.count)
        rows = self._rows.numpy()[numbers % CAPACITY]
        return set(rows[:, 4].astype(int).tolist())

    def read_new(self):
        """Steps since the last call, `ExchangeRecord`s; oldest may be lost."""
        records, self._read = self.read_from(self._read)
        return records

    def read_from(self, first):
        """Steps from a number on; the oldest may be lost.

        Args:
          first: The number, from 0.

        Returns:
          A list of `ExchangeRecord`, and the number of the next step.
        """
        count = self.count
        first = max(first, count - CAPACITY)
        if first == count:
            return [], count
        # The step before, if it is known, says when the computation began.
        start = max(0, first - 1, count - CAPACITY)
        rows = self._rows.numpy()[np.arange(start, count) % CAPACITY].tolist()
        befores = [row[1:3] for row in rows]
        if start == first:
            befores.insert(0, [0.0, max(rows[0][2] - 1, 0)])
        else:
            del rows[0]
        pairs = zip(befores, rows, strict=False)
        return [self._record(*before, *row) for before, row in pairs], count

    def _record(
        self, before, known, began, ended, updates, accepted, lane, *extras
    ):
        staleness, sent, received = self.figures(int(lane), *extras)
        # A step that accumulates, or that a loss scale skips, is no update.
        pulled = int(min(known, updates))
        return ExchangeRecord(
            time=ended,
            version=int(updates),
            pulled=pulled,
            arrival=-1,
            staleness=staleness,
            accepted=bool(accepted),
            compute_seconds=began - before if before else 0.0,
            exchange_seconds=ended - began,
            wait_seconds=0.0,
            bytes_sent=sent,
            bytes_received=received,
            local_steps=1,
            nonfinite=not accepted,
            pulled_by_server=(pulled,),
        )

    def figures(self, lane, row_bytes):
        """Staleness of a step, bytes sent and received.

        Args:
          lane: Number of the lane.
          row_bytes: Sent beside its vectors.
        """
        size = self._bytes[lane] + int(row_bytes)
        return 0, size, size


def _iterations(optimizer):
    # The value, not the variable, which the step changes.
    return tf.identity(tf.cast(optimizer.iterations, tf.int64))
