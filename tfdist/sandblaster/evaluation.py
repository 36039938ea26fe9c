"""Evaluations over all data, as the coordinator sees them."""

import time

import numpy as np

from tfdist.sandblaster import commands
from tfdist.sandblaster import work_queue

# Seconds between two looks at whether all servers are there.
_CHECK_SECONDS = 1.0
# Seconds between two looks at what the workers have done.
POLL_SECONDS = 0.01


class Evaluation:
    """Hands out portions, and sums what they come to.

    Args:
      board: The `SharedRecord` of `PortionWorker`; also with `done`, the number
        of iterations, and `evaluation`, that of evaluations.
      held: What the servers hold of the model, an `_OnServers`: its `shards`
        and `deposits`.
      worker: The `PortionWorker` of this process.
      num_portions: Into how many portions the data is cut.
      patience: As of `WorkQueue`.
      lost_workers: Callable without arguments that gives the numbers of
        workers that are not there any more.
      samples: The `Samples`; None where each evaluation is over all data.
    """

    def __init__(
        self,
        board,
        held,
        worker,
        num_portions,
        patience,
        lost_workers,
        samples=None,
    ):
        self._board = board
        self._shards = held.shards
        self._fence = held.shards.fence
        self._deposits = held.deposits
        self._worker = worker
        self._num_portions = num_portions
        self._patience = patience
        self._lost_workers = lost_workers
        self._samples = samples
        # By point: the stamp and the totals of the last evaluation there.
        self._evaluated = {}
        self._checked = time.monotonic()

    def of(self, point):
        """Returns the stamp and the totals of the last evaluation at a point.

        Args:
          point: Name of the vector.
        """
        return self._evaluated[point]

    def adopt(self, result):
        """Takes note of an evaluation that another process has made.

        Args:
          result: As of `Coordinator.iterate`, or None.
        """
        self._evaluated = {}
        if result is not None:
            totals = np.array(result["totals"])
            self._evaluated[result["point"]] = result["evaluation"], totals

    def close(self, done):
        """No portion is handed out: an iteration has ended.

        Args:
          done: Number of iterations.
        """

        def change(board, now):
            self._fence.refuse(board.get("term", 0))
            close(board, done)

        self._board.change(change)

    def evaluate(self, point, gradient, number=None, before="", after=""):
        """The loss at a point, a float; the gradient goes into a vector.

        Args:
          point: Name of the vector of the point.
          gradient: Name of the vector that gets the mean gradient.
          number: Of the sample; None evaluates all data.
          before: Name of the vector that gets the mean gradient on what the
            sample shares with the one before.
          after: The same of what it shares with the next one.

        Raises:
          RuntimeError: Another process of the chief has begun to coordinate.
        """
        if number is None:
            portions, parts = None, [(self._num_portions, gradient)]
        else:
            sample = self._samples[number]
            portions = sample.portions
            parts = [
                (len(sample.before), before),
                (len(sample.own), gradient),
                (len(sample.after), after),
            ]
        self._deposits.clear()
        stamp = self._board.change(
            lambda board, now: self._open(board, point, portions)
        )
        totals, end, counts = 0.0, 0, []
        for size, target in parts:
            own = self._add(end, end + size)
            end += size
            totals = totals + own
            counts.append(own[1])
            self._deposits.finish(target, own[1])
        value, count = totals[:2]
        if number is not None:
            self._shards.run(mean_commands(gradient, before, after, counts))
        self._evaluated[point] = stamp, totals
        return float(value / count)

    def _add(self, begin, end):
        """Adds some portions, in their order, when they are computed.

        Args:
          begin: Place of the first in the queue.
          end: Place after the last.

        Returns:
          Their totals, a float64 vector.
        """
        totals, added = 0.0, begin
        while added < end:
            worked = self._worker.work()
            tickets = self._accepted()[added:end]
            if None in tickets:
                tickets = tickets[: tickets.index(None)]
            if tickets:
                for row in self._deposits.add(tickets):
                    totals = totals + row
                added += len(tickets)
            elif not worked:
                self._give_back_lost()
                self._check_servers()
                time.sleep(POLL_SECONDS)
        return totals

    def _accepted(self):
        board = self._board.read()
        self._fence.refuse(board.get("term", 0))
        return board["queue"]["accepted"]

    def _open(self, board, point, portions):
        """The board has a new queue; returns the stamp of its evaluation."""
        self._fence.refuse(board.get("term", 0))
        typical, ticket = board.get("typical"), board["next_ticket"]
        if board["queue"] is not None:
            last = work_queue.restored(board["queue"])
            typical, ticket = last.typical, last.next_ticket
        queue = work_queue.WorkQueue(
            self._num_portions if portions is None else len(portions),
            self._patience,
            ticket,
            typical,
        )
        # By place in the queue the portion of the data; None: the same.
        board["portions"] = portions
        board["queue"] = queue.state()
        board["point"] = point
        board["evaluation"] += 1
        # A number alone may come again when the first server was lost.
        board["stamp"] = f"{self._fence.term}/{board['evaluation']}"
        return board["stamp"]

    def _give_back_lost(self):
        lost = self._lost_workers()
        if not lost:
            return

        def give_back(board, now):
            queue = work_queue.restored(board["queue"])
            queue.give_back(lost)
            board["queue"] = queue.state()

        self._board.change(give_back)

    def _check_servers(self):
        """Finds out that a server is lost of which nothing is wanted now."""
        now = time.monotonic()
        if now - self._checked > _CHECK_SECONDS:
            self._checked = now
            self._fence.check()


def mean_commands(gradient, before, after, counts):
    """The commands that make the gradient on a sample of those on its parts.

    Args:
      gradient: Name of the vector of the gradient on what is the sample's own,
        which becomes that on all of it.
      before: See `Evaluation.evaluate`.
      after: See `Evaluation.evaluate`.
      counts: Examples of the three parts, in their order.
    """
    first, own, last = (count / sum(counts) for count in counts)
    return [
        commands.Scale(gradient, own),
        commands.Axpy(gradient, first, before),
        commands.Axpy(gradient, last, after),
    ]


def close(board, done):
    """Ends the queue of a board.

    Args:
      board: The record.
      done: Number of iterations.
    """
    if board.get("queue") is not None:
        last = work_queue.restored(board["queue"])
        board["typical"] = last.typical
        board["next_ticket"] = last.next_ticket
    board["queue"] = None
    board["done"] = done
