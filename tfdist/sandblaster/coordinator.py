"""The coordinator: it hands out portions, and moves the point on the shards."""

import time
import uuid

import numpy as np

from tfdist.sandblaster import minimizer as minimizer_lib
from tfdist.sandblaster import saved_memory
from tfdist.sandblaster import work_queue

# Iterations whose results are kept for workers that are behind.
_RECENT = 20
# Seconds between two looks at what the workers have done.
POLL_SECONDS = 0.01


class Coordinator:
    """The chief's part of one call of `fit`.

    It holds scalars. All that another process needs to take its place is in
    two records and on the shards.

    Args:
      board: The `SharedRecord` of `PortionWorker`; also with `fit`, the number
        of the call of `fit`, and `done`, the number of its iterations.
      progress: The `SharedRecord` of the minimization itself.
      shards: The `Shards`.
      deposits: The `Deposits`.
      worker: The `PortionWorker` of this process.
      minimizer: The `Minimizer`.
      num_portions: Into how many portions the data is cut.
      patience: As of `WorkQueue`.
      lost_workers: Callable without arguments that gives the numbers of
        workers that are not there any more.
    """

    def __init__(
        self,
        board,
        progress,
        shards,
        deposits,
        worker,
        minimizer,
        num_portions,
        patience,
        lost_workers,
    ):
        self._board = board
        self._progress = progress
        self._shards = shards
        self._deposits = deposits
        self._worker = worker
        self._minimizer = minimizer
        self._num_portions = num_portions
        self._patience = patience
        self._lost_workers = lost_workers
        self._name = str(uuid.uuid4())
        # By point: number and totals of the last evaluation there.
        self._evaluated = {}

    def begin(self, fit, description, values, loaded=None):
        """Begins a call of `fit`, or goes on with one.

        Args:
          fit: Number of the call.
          description: Dict that other workers compare theirs with.
          values: The model's parameters, a tensor.
          loaded: What was loaded with the model, see `saved_memory`, or None.

        Returns:
          Whether it goes on with what another process of the chief began.
        """
        before = self._progress.change(self._take_over)
        goes_on = before.get("fit", -1) == fit
        if goes_on:
            is_complete = self._board.read().get("queue") is None
            self._minimizer.restore(before["minimizer"], is_complete)
        elif not self._has_same_point(values, description, before):
            self._shards.create()
            before = {
                "result": saved_memory.put(
                    loaded, self._shards, self._minimizer, description, values
                )
            }
            if before["result"] is None:
                self._shards.load(self._minimizer.point, values)
                self._minimizer.moved()
        if before.get("result") is not None:
            result = before["result"]
            self._evaluated[result["point"]] = (
                result["evaluation"],
                np.array(result["totals"]),
            )
        done = before["done"] if goes_on else 0
        if not goes_on:
            self._note(fit, done, description, before.get("result"))

        def take_over(board, now):
            del now
            board.setdefault("evaluation", 0)
            board.setdefault("next_ticket", 0)
            board["coordinator"] = self._name
            self._close(board, done)
            board.update(fit=fit, ended=False)

        self._board.change(take_over)
        return goes_on

    def _take_over(self, progress, now):
        """No other process of the chief coordinates from now on."""
        del now
        before = dict(progress)
        progress["coordinator"] = self._name
        return before

    def _has_same_point(self, values, description, before):
        """Whether this `fit` goes on where the one before has ended.

        Its pairs are kept if it minimizes the same function, and nobody has
        changed the parameters since.
        """
        if before.get("description") != description:
            return False
        if self._minimizer.value is None:
            return False
        point = self._shards.fetch(self._minimizer.point)
        return np.array_equal(point, values)

    def _begin_at(self, values, description, before):
        """The point becomes the model's parameters, unless it is already.

        Pairs of a call of `fit` before are kept if it minimized the same
        function, and nobody has changed the parameters since.
        """
        is_same = before.get("description") == description
        if is_same and self._minimizer.value is not None:
            point = self._shards.fetch(self._minimizer.point)
            if np.array_equal(point, values):
                return
        self._shards.create()
        self._shards.load(self._minimizer.point, values)
        self._minimizer.moved()

    def _progress_done(self):
        return self._progress.read()["done"]

    def iterate(self, fit, number, description):
        """Makes an iteration, if it was not made already.

        Args:
          fit: Number of the call of `fit`.
          number: That of the iteration, from 0.
          description: As of `begin`.

        Returns:
          Its result, a dict: `outcome`, `value`, `gradient_norm`, `step`,
          `evaluations`, `restarted`, and `point` with the `evaluation` and the
          `totals` there.
        """
        progress = self._progress.read()
        if progress["done"] > number:
            return progress["result"]
        made = self._minimizer.iterate(self._evaluate)
        evaluation, totals = self._evaluated[self._minimizer.point]
        result = {
            "outcome": made.outcome.value,
            "value": made.value,
            "gradient_norm": made.gradient_norm,
            "step": made.step,
            "evaluations": made.evaluations,
            "restarted": made.restarted,
            "point": self._minimizer.point,
            "evaluation": evaluation,
            "totals": totals.tolist(),
        }
        self._note(fit, number + 1, description, result)
        self._board.change(lambda board, now: self._close(board, number + 1))
        return result

    def end(self):
        """Tells the other workers that `fit` has ended."""

        def note(board, now):
            del now
            if board.get("coordinator") == self._name:
                board["ended"] = True

        self._board.change(note)

    def _note(self, fit, done, description, result):
        state = self._minimizer.state()

        def replace(progress, now):
            del now
            self._check_is_coordinator(progress)
            progress.update(
                fit=fit,
                done=done,
                description=description,
                minimizer=state,
                result=result,
                recent=progress["recent"][-_RECENT:] if done else [],
            )
            if done:
                progress["recent"].append([done - 1, result])

        self._progress.change(replace)

    def _evaluate(self, point, gradient):
        """The loss at a point; the gradient goes into the other vector."""
        self._deposits.clear()
        evaluation = self._board.change(
            lambda board, now: self._open(board, point)
        )
        totals, added = 0.0, 0
        while added < self._num_portions:
            worked = self._worker.work()
            tickets = self._accepted()[added:]
            if None in tickets:
                tickets = tickets[: tickets.index(None)]
            if tickets:
                for row in self._deposits.add(tickets):
                    totals = totals + row
                added += len(tickets)
            elif not worked:
                self._give_back_lost()
                time.sleep(POLL_SECONDS)
        value, count = totals[:2]
        self._deposits.finish(gradient, count)
        self._evaluated[point] = evaluation, totals
        return float(value / count)

    def _accepted(self):
        return self._board.read()["queue"]["accepted"]

    def _open(self, board, point):
        """The board has a new queue."""
        self._check_is_coordinator(board)
        typical, ticket = board.get("typical"), board["next_ticket"]
        if board["queue"] is not None:
            last = work_queue.restored(board["queue"])
            typical, ticket = last.typical, last.next_ticket
        queue = work_queue.WorkQueue(
            self._num_portions, self._patience, ticket, typical
        )
        board["queue"] = queue.state()
        board["point"] = point
        board["evaluation"] += 1
        return board["evaluation"]

    def _close(self, board, done):
        """The iteration has ended."""
        self._check_is_coordinator(board)
        if board.get("queue") is not None:
            last = work_queue.restored(board["queue"])
            board["typical"] = last.typical
            board["next_ticket"] = last.next_ticket
        board["queue"] = None
        board["done"] = done

    def _check_is_coordinator(self, record):
        if record["coordinator"] != self._name:
            raise RuntimeError(
                "Another process of the chief has begun to coordinate: this "
                "one must end."
            )

    def _give_back_lost(self):
        lost = self._lost_workers()
        if not lost:
            return

        def give_back(board, now):
            del now
            queue = work_queue.restored(board["queue"])
            queue.give_back(lost)
            board["queue"] = queue.state()

        self._board.change(give_back)


def is_last(result):
    """Whether training ends with the result of an iteration."""
    return result["outcome"] != minimizer_lib.Outcome.MOVED.value
