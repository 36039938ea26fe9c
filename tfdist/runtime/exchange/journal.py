"""The record that each worker keeps of its exchanges."""

import dataclasses

import numpy as np
import tensorflow as tf

from tfdist.exchange_record import ExchangeRecord

# Rows kept on the worker between two looks at them.
CAPACITY = 8192


# In a row, what is of each server comes after all that is one number.
_NUMBERS = dataclasses.fields(ExchangeRecord)[:-1]
_TYPES = tuple(field.type for field in _NUMBERS)


class Journal:
    """A ring of the last exchanges, written inside the training step.

    Args:
      store: The `ParameterStore` that owns it.
    """

    def __init__(self, store):
        self._device = store.worker_device
        self._rows = store.worker_variable(
            tf.zeros([CAPACITY, len(_NUMBERS) + store.num_shards], tf.float64),
            "journal",
        )
        self._count = store.worker_variable(tf.zeros([], tf.int64), "exchanges")
        self._others = store.worker_variable(tf.zeros([], tf.int64), "others")
        self._trained = store.worker_variable(tf.zeros([], tf.int64), "trained")
        self._last = store.worker_variable(tf.zeros([], tf.float64), "last")
        self._dropped = store.worker_variable(tf.zeros([], tf.bool), "dropped")
        self._drops = store.worker_variable(tf.zeros([], tf.int64), "drops")
        self._begun = store.worker_variable(tf.zeros([], tf.int64), "begun")
        self._num_shards = store.num_shards
        self._elsewhere = store.worker_variable(
            tf.zeros([store.num_shards], tf.int64), "elsewhere"
        )
        self._read = 0

    def write(
        self,
        *,
        started,
        pulled,
        pulled_by_server,
        arrival,
        staleness,
        wait,
        version,
        accepted,
        bytes_sent,
        bytes_received,
        shards,
        local_steps=None,
        finite=None,
        current=None,
    ):
        """Builds the ops that note one exchange; see `ExchangeRecord`.

        `finite` is None where nobody has looked; `shards` as in `note_begun`;
        `current` says whether the gradients are of the epoch that servers are
        in, None where nobody asks.
        """
        with tf.device(self._device):
            now = tf.timestamp()
            if finite is None:
                finite = tf.ones([], tf.bool)
            last = self._last.read_value()
            waited = tf.reduce_max(tf.stack(wait))
            row = tf.stack(
                [
                    now,
                    tf.cast(version, tf.float64),
                    tf.cast(pulled, tf.float64),
                    tf.cast(arrival, tf.float64),
                    tf.cast(tf.reduce_max(tf.stack(staleness)), tf.float64),
                    tf.cast(accepted, tf.float64),
                    tf.where(last > 0.0, started - last, 0.0),
                    tf.maximum(now - started - waited, 0.0),
                    waited,
                    _total(bytes_sent),
                    _total(bytes_received),
                    tf.constant(1.0, tf.float64)
                    if local_steps is None
                    else tf.cast(local_steps, tf.float64),
                    tf.cast(tf.logical_not(finite), tf.float64),
                    *(tf.cast(p, tf.float64) for p in pulled_by_server),
                ]
            )
            count = self._count.read_value()
            self._rows.scatter_update(
                tf.IndexedSlices(row[None], (count % CAPACITY)[None])
            )
            self._count.assign_add(1, read_value=False)
            self._last.assign(now, read_value=False)
            # Of the same batch the same would come again.
            late = tf.logical_and(finite, tf.logical_not(accepted))
            if current is not None:
                late = tf.logical_and(late, current)
            self._dropped.assign(late, read_value=False)
            dropped = tf.cast(tf.logical_not(accepted), tf.int64)
            self._drops.assign_add(dropped, read_value=False)
            self._note_elsewhere(shards, -dropped)

    def note_begun(self, shards):
        """Builds: an optimizer's step is about to be sent; the operations.

        Args:
          shards: Numbers of the servers that take part.
        """
        with tf.device(self._device):
            one = tf.ones([], tf.int64)
            return [
                tf.raw_ops.AssignAddVariableOp(
                    resource=self._begun.local_handle, value=one
                ),
                *self._note_elsewhere(shards, one),
            ]

    def note_repeated(self, repeated):
        """Builds that servers have left a step out that they had made before.

        Args:
          repeated: Dict of the numbers of servers to how often, scalar int64
            tensors; empty if nobody looks.
        """
        if not repeated:
            return
        with tf.device(self._device):
            zero = tf.zeros([], tf.int64)
            self._elsewhere.assign_add(
                tf.stack(
                    [repeated.get(k, zero) for k in range(self._num_shards)]
                ),
                read_value=False,
            )

    def _note_elsewhere(self, shards, number):
        """Builds that as many steps leave the other servers out."""
        if len(shards) == self._num_shards:
            return []
        others = [int(k not in shards) for k in range(self._num_shards)]
        return [
            tf.raw_ops.AssignAddVariableOp(
                resource=self._elsewhere.local_handle,
                value=number * tf.constant(others, tf.int64),
            )
        ]

    @property
    def begun(self):
        """Optimizer steps that this worker has begun to send, int."""
        return int(self._begun.numpy())

    @property
    def drops(self):
        """Optimizer steps of this worker that were dropped, int."""
        return int(self._drops.numpy())

    @property
    def elsewhere(self):
        """By server: steps of which nothing lies there, not dropped, ints."""
        return self._elsewhere.numpy().tolist()

    def forget_dropped(self):
        """Builds: a step begins, and perhaps it sends no gradients."""
        self._dropped.assign(False, read_value=False)

    def was_dropped(self):
        """Whether the step's last gradients came too late, a bool tensor."""
        return self._dropped.read_value()

    def note_training(self):
        """Builds the op that counts a training step, exchanged or not."""
        with tf.device(self._device):
            self._trained.assign_add(1, read_value=False)

    @property
    def trained(self):
        """Training steps of this worker, an int: also those without exchange.

        That is where gradients are accumulated, or are not finite.
        """
        return int(self._trained.numpy())

    def note_other(self):
        """Builds the op that counts an exchange that is no optimizer's."""
        with tf.device(self._device):
            self._others.assign_add(1, read_value=False)

    @property
    def count(self):
        """Optimizer steps that this worker has exchanged, int."""
        return int(self._count.numpy())

    @property
    def bytes_between(self):
        """Bytes that came between steps, which no record has: none, int."""
        return 0

    @property
    def exchanges(self):
        """All exchanges that this worker has made, int."""
        return self.count + int(self._others.numpy())

    def longest_compute_seconds(self):
        """The longest time between two exchanges that is still known."""
        column = [f.name for f in _NUMBERS].index("compute_seconds")
        return float(self._rows.numpy()[:, column].max())

    def read_new(self):
        """Exchanges since the last call, a list; the oldest may be lost."""
        records, self._read = self.read_from(self._read)
        return records

    def read_from(self, first):
        """Exchanges from a number on; the oldest may be lost.

        Args:
          first: The number, from 0.

        Returns:
          A list of `ExchangeRecord`, and the number of the next exchange.
        """
        count = self.count
        first = max(first, count - CAPACITY)
        if first == count:
            return [], count
        rows = self._rows.numpy()[np.arange(first, count) % CAPACITY]
        return [_exchange(row) for row in rows.tolist()], count


def _exchange(row):
    numbers = (kind(value) for kind, value in zip(_TYPES, row, strict=False))
    pulled = tuple(map(int, row[len(_TYPES) :]))
    return ExchangeRecord(*numbers, pulled)


def _total(sizes):
    known = float(sum(s for s in sizes if isinstance(s, int)))
    unknown = [tf.cast(s, tf.float64) for s in sizes if not isinstance(s, int)]
    return tf.add_n([tf.constant(known, tf.float64), *unknown])
