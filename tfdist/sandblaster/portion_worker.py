"""A worker: takes portions, and leaves what they come to on the servers."""

import time

from tfdist.sandblaster import work_queue

# Seconds after which a worker asks again whether its answer is still wanted.
ASK_AGAIN_SECONDS = 0.25


class PortionWorker:
    """Portions of one data set, computed on this worker.

    Args:
      board: The `SharedRecord` with `queue`, the state of a `WorkQueue` (or
        None), `portions`, those of the data that are in the queue, in order
        (None for all), `point`, the vector where it evaluates, and `stamp`,
        which no other evaluation has.
      shards: The `Shards`.
      deposits: The `Deposits`.
      gradients: The `PortionGradients`.
      portions: List of portions, each a list of batches.
      worker: Number of this worker.
    """

    def __init__(self, board, shards, deposits, gradients, portions, worker):
        self._board = board
        self._shards = shards
        self._deposits = deposits
        self._gradients = gradients
        self._portions = portions
        self._worker = worker
        # Stamp of the evaluation whose point the model has.
        self._loaded = None
        # The portion that was taken when the last one was completed.
        self._taken = None

    def load(self, point, evaluation):
        """Gives the model the values of a point, if it has others.

        Args:
          point: Name of the vector.
          evaluation: Stamp of the evaluation there.

        Returns:
          Whether it had others.
        """
        if evaluation == self._loaded:
            return False
        self._loaded = None
        self._gradients.assign(self._shards.fetch(point))
        self._loaded = evaluation
        return True

    def values(self):
        """Returns the model's parameters, a tensor `(number,)`."""
        return self._gradients.values()

    def rounded(self, vector):
        """Returns what `values` gives when the model has those of a vector."""
        return self._gradients.rounded(vector)

    def forget(self):
        """Forgets what servers that were lost have said."""
        self._loaded = self._taken = None

    def work(self):
        """Computes a portion, and takes the next one.

        Returns:
          Whether there was one.
        """
        taken, self._taken = self._taken, None
        if taken is None:
            taken = self._board.change(self._take)
        if taken is None:
            return False
        attempt, portion, evaluation, point = taken
        if self.load(point, evaluation) and not self._is_open(attempt):
            # The vector may have become another point before it was fetched.
            self._loaded = None
            return True
        asked = time.monotonic()

        def goes_on():
            nonlocal asked
            if time.monotonic() - asked < ASK_AGAIN_SECONDS:
                return True
            asked = time.monotonic()
            return self._is_open(attempt)

        found = self._gradients.compute(self._portions[portion], goes_on)
        if found is not None:
            self._deposits.keep(attempt.ticket, *found)
            self._taken = self._board.change(
                lambda board, now: self._complete(board, attempt.ticket, now)
            )
        return True

    def _is_open(self, attempt):
        queue = _queue_of(self._board.read())
        return queue is not None and queue.is_open(attempt.ticket)

    def _take(self, board, now):
        """Takes a portion.

        Returns:
          A tuple, the `Attempt`, the number of its portion in the data, the
          stamp of the evaluation and the name of its point; None if there is
          no portion.
        """
        queue = _queue_of(board)
        if queue is None:
            return None
        attempt = queue.take(self._worker, now)
        if attempt is None:
            return None
        board["queue"] = queue.state()
        portion = attempt.portion
        if board.get("portions") is not None:
            portion = board["portions"][portion]
        return attempt, portion, board["stamp"], board["point"]

    def _complete(self, board, ticket, now):
        """Completes an attempt, and takes a portion; returns that."""
        queue = _queue_of(board)
        counts = queue is not None and queue.complete(ticket, now)
        if counts:
            board["queue"] = queue.state()
        # By worker: portions that counted, and those that came too late.
        by_worker = board.setdefault("counts", {})
        numbers = by_worker.setdefault(str(self._worker), [0, 0])
        numbers[0 if counts else 1] += 1
        return self._take(board, now)


def _queue_of(board):
    """The `WorkQueue` under way, or None."""
    state = board.get("queue")
    return None if state is None else work_queue.restored(state)
