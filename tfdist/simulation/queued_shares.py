"""Portions of epochs that virtual workers take, as with `work="queue"`."""

import bisect

from tfdist.data_shares import portion_queue

WAIT = object()
"""In the place of a batch: a worker waits for portions that others have."""


class QueuedShares:
    """Batches of portions, given out by the queue of real workers.

    See `Shares`, whose place it takes, and
    `runtime.keras_hooks.queued_epoch.QueuedEpoch`.

    Args:
      num_batches: Batches of an epoch.
      epochs: Number of epochs.
      num_workers: Number of workers.
      portions_per_worker: As of `AsyncStrategy`.
    """

    goes_to_others = True

    def __init__(self, num_batches, epochs, num_workers, portions_per_worker):
        self._num_batches = num_batches
        self._epochs = epochs
        self._ends = portion_queue.cut(
            num_batches, num_workers, portions_per_worker
        )
        self._queue = self._applied = None
        # By worker its `Portion`, and the number of its next batch.
        self._portions = [None] * num_workers
        self._next = [0] * num_workers
        self._has_changed = False
        self._begin(0)

    def _begin(self, epoch):
        self._queue = portion_queue.PortionQueue(epoch, self._ends)
        # By portion, how many of its batches servers have applied.
        self._applied = [0] * len(self._ends)
        self._has_changed = True

    def next(self, worker, lost=()):
        """Returns the next batch of a worker, which is done with its last.

        Args:
          worker: Its number.
          lost: Workers whose portions come back if there is no other.

        Returns:
          The number of a batch, counted over all epochs; `WAIT`; or None if
          all epochs are over.
        """
        while not self._has_batch(worker):
            portion, self._portions[worker] = self._portions[worker], None
            if portion is not None:
                self._queue.complete(portion.number, worker)
            if self._queue.is_done:
                if self._queue.epoch + 1 == self._epochs:
                    self._has_changed = True
                    return None
                self._begin(self._queue.epoch + 1)
            if not self._take(worker, lost):
                return WAIT
        batch = self._next[worker]
        self._next[worker] += 1
        return self._queue.epoch * self._num_batches + batch

    def _has_batch(self, worker):
        portion = self._portions[worker]
        return portion is not None and self._next[worker] < portion.end

    def _take(self, worker, lost):
        """Takes a portion; returns whether there is one."""
        portion = self._queue.take(worker)
        if portion is None and self._queue.give_back(lost):
            self._has_changed = True
            portion = self._queue.take(worker)
        self._portions[worker] = portion
        if portion is not None:
            self._next[worker] = portion.first + self._applied[portion.number]
        return portion is not None

    def arrived(self, batch):
        """Notes that servers have applied a batch."""
        epoch, number = divmod(batch, self._num_batches)
        if epoch == self._queue.epoch:
            portion = bisect.bisect_right(self._ends, number)
            first = self._ends[portion - 1] if portion else 0
            self._applied[portion] = number + 1 - first

    def died(self, worker):
        """Notes that the process of a worker, and what it knew, is gone."""
        self._portions[worker] = None

    def has_changed(self):
        """Whether workers that wait should ask again; True once."""
        has_changed, self._has_changed = self._has_changed, False
        return has_changed
