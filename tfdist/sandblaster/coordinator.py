"""The coordinator: it moves the point on the shards, and survives them."""

from absl import logging
import numpy as np

from tfdist.sandblaster import evaluation as evaluation_lib
from tfdist.sandblaster import fence
from tfdist.sandblaster import minimizer as minimizer_lib
from tfdist.sandblaster import saved_memory
from tfdist.sandblaster import whole_data

# What is noted of each iteration.
_NOTED = (
    "fit",
    "done",
    "counted",
    "description",
    "minimizer",
    "result",
)


class Coordinator:
    """The chief's part of one call of `fit`.

    It holds scalars, and a copy of the parameters for the case that a server
    is lost without a snapshot. All that another process needs to take its place
    is in two records, on the shards, and in their snapshots.

    Args:
      board: The `SharedRecord` of `PortionWorker`; also with `fit`, the number
        of the call of `fit`, `first`, the epoch with which it began, and
        `done`, the number of its iterations.
      progress: The `SharedRecord` of the minimization itself.
      held: What the servers hold of the model, an `_OnServers`: its `shards`,
        `minimizer` and `stored`.
      snapshots: The `IterationSnapshots`.
      worker: The `PortionWorker` of this process.
      evaluation: The `Evaluation`.

    Attributes:
      has_begun: Whether `begin` has come to its end.
      has_ended: Whether a process of the chief before had ended the call.
    """

    def __init__(
        self,
        board,
        progress,
        held,
        snapshots,
        worker,
        evaluation,
    ):
        self._board = board
        self._progress = progress
        self._shards = held.shards
        self._fence = held.shards.fence
        self._minimizer = held.minimizer
        self._stored = held.stored
        self._snapshots = snapshots
        self._worker = worker
        self._evaluation = evaluation
        # The record of the last iteration; and that of the parameters that
        # are known here, with these.
        self._noted = None
        self._retained = None
        self._first = None
        self.has_begun = self.has_ended = False

    @property
    def parameters(self):
        """The parameters after the last iteration, a tensor."""
        return self._retained[1]

    def begin(self, fit, description, first, values, loaded, counted):
        """Begins a call of `fit`, or goes on with one.

        Args:
          fit: Number of the call.
          description: Dict that other workers compare theirs with.
          first: The epoch with which the call began.
          values: The model's parameters, a tensor.
          loaded: What was loaded with the model, see `saved_memory`, or None.
          counted: Iterations that its optimizer has counted, an int.

        Returns:
          Whether it goes on with what another process of the chief began.
        """
        self._first = first
        whole = self._fence.begin()
        before = self._progress.change(self._take_over)
        self._snapshots.slot = before.get("slot")
        if not all(whole):
            before = self._from_snapshot(fit, description) or {}
            has_minimized = self._minimizer.value is not None
            if not before and (any(whole) or has_minimized):
                logging.warning(
                    "Parameter servers have lost what they held, and there is "
                    "no snapshot of it: the minimization starts from the "
                    "parameters of this process."
                )
        else:
            self._snapshots.look()
        goes_on = before.get("fit", -1) == fit
        if goes_on:
            whole_data.compare(before["description"], description)
        if goes_on and all(whole):
            board = self._board.read()
            # The board may still be that of the call before.
            self.has_ended = board.get("fit") == fit and board["ended"]
            self._go_on_with(before)
        elif not goes_on and not (
            all(whole) and self._has_same_point(values, description, before)
        ):
            self._shards.create()
            before = {
                "result": saved_memory.put(
                    loaded, self._shards, self._minimizer, description, values
                )
            }
            if before["result"] is None:
                self._shards.load(self._minimizer.point, values)
                self._minimizer.moved()
        if not goes_on:
            # The loss may be another one, which no description tells.
            self._minimizer.look_again()
            before = {
                "fit": fit,
                "done": 0,
                "counted": counted,
                "description": description,
                "minimizer": self._minimizer.state(),
                "result": before.get("result"),
            }
        self._replace(before)
        if goes_on:
            values = self._shards.fetch(self._minimizer.point)
        self._retained = self._noted, values
        self.has_begun = True
        return goes_on

    def go_on(self):
        """Goes on when servers are there again.

        All shards go back to the last iteration of which each has a snapshot,
        if one of them has lost what it held. What was computed of the
        evaluation under way counts no more.

        Raises:
          RuntimeError: Another process of the chief has begun to coordinate.
        """
        whole = self._fence.begin()
        if all(whole):
            record = self._progress.change(self._renew)
            self._snapshots.look()
            self._go_on_with(record)
        else:
            self._progress.change(self._renew)
            done = self._noted["done"]
            record = self._from_snapshot(
                self._noted["fit"], self._noted["description"]
            )
            if record is None:
                record = self._start_again()
            if record["done"] < done:
                logging.warning(
                    "%d iterations are made again.", done - record["done"]
                )
        self._replace(record)

    def _take_over(self, progress, now):
        """No other process of the chief coordinates from now on."""
        before = dict(progress)
        progress["term"] = self._fence.term
        return before

    def _renew(self, progress, now):
        """As `_take_over`, if no other process has."""
        self._fence.refuse(progress.get("term"))
        return self._take_over(progress, now)

    def _go_on_with(self, record):
        """The minimizer is what a record says, whose vectors are there."""
        is_complete = self._board.read().get("queue") is None
        self._minimizer.restore(record["minimizer"], is_complete)

    def _from_snapshot(self, fit, description):
        """Puts the newest snapshot of a call of `fit` on all shards.

        Returns:
          Its record, or None if there is none.
        """
        self._snapshots.look()
        for slot, record in self._snapshots.records():
            if (record["fit"], record["description"]) != (fit, description):
                continue
            now = record["minimizer"]["now"]
            if self._snapshots.read(self._stored, slot, now):
                self._minimizer.restore(record["minimizer"])
                logging.warning(
                    "All parameter servers are back at their snapshots of the "
                    "end of iteration %d.",
                    record["done"],
                )
                return record
        return None

    def _start_again(self):
        """Makes the parameters that are known here the point.

        Returns:
          The record.
        """
        record, values = self._retained
        self._minimizer.restore(record["minimizer"])
        self._shards.create()
        self._shards.load(self._minimizer.point, values)
        self._minimizer.moved()
        logging.warning(
            "There is no snapshot of what parameter servers have lost: the "
            "minimization goes on from the parameters after iteration %d, with "
            "an empty memory.",
            record["done"],
        )
        return {**record, "minimizer": self._minimizer.state()}

    def _replace(self, record):
        """Both records are those of an iteration, and all shards are whole."""
        self._evaluation.adopt(record["result"])
        self._noted = {
            **{name: record[name] for name in _NOTED},
            "first": self._first,
            "slot": self._snapshots.slot,
            "term": self._fence.term,
        }

        def replace(progress, now):
            self._fence.refuse(progress.get("term"))
            progress.clear()
            progress.update(self._noted)

        self._progress.change(replace)

        def begin(board, now):
            board["evaluation"] = max(
                board.get("evaluation", 0), record.get("evaluations", 0)
            )
            board.setdefault("counts", record.get("counts", {}))
            board["term"] = self._fence.term
            evaluation_lib.close(board, record["done"])
            # No ticket of another term has this number.
            board["next_ticket"] = self._fence.term * fence.TICKETS
            board.update(fit=record["fit"], first=self._first, ended=False)

        self._board.change(begin)
        self._fence.settle()

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
        return np.array_equal(self._worker.rounded(point), values)

    def iterate(self, number):
        """Makes iterations until that of a number is made.

        Args:
          number: Of the iteration, from 0.

        Returns:
          The result of the last iteration, a dict: `outcome`, `value`,
          `gradient_norm`, `step`, `evaluations`, `restarted`, `iterations`
          (those of calls before are among them), and `point` with the stamp of
          the `evaluation` and the `totals` there. The model has its
          parameters, unless they were set since it was given them.
        """
        is_new = False
        while (progress := self._progress.read())["done"] <= number:
            self._make(progress)
            is_new = True
        result = progress["result"]
        if result is not None:
            is_new |= self._worker.load(result["point"], result["evaluation"])
            # Otherwise a callback may have given the model other values.
            if is_new:
                self._retained = progress, self._worker.values()
        return result

    def _make(self, progress):
        """Makes an iteration."""
        self._fence.refuse(progress["term"])
        made = self._minimizer.iterate(self._evaluation.evaluate)
        stamp, totals = self._evaluation.of(self._minimizer.point)
        done = progress["done"]
        result = {
            "outcome": made.outcome.value,
            "value": made.value,
            "gradient_norm": made.gradient_norm,
            "step": made.step,
            "evaluations": made.evaluations,
            "restarted": made.restarted,
            "iterations": progress["counted"] + done + 1,
            "point": self._minimizer.point,
            "evaluation": stamp,
            "totals": totals.tolist(),
        }
        self._note(
            {
                "done": done + 1,
                "minimizer": self._minimizer.state(),
                "result": result,
            }
        )
        self._evaluation.close(done + 1)
        self._write_snapshot()

    def set_last(self, values):
        """Makes other parameters the last ones of a call of `fit`.

        Callbacks may set them when training ends, as those of an epoch before.

        Args:
          values: The model's parameters, a tensor.
        """
        if np.array_equal(values, self.parameters):
            return
        self._minimizer.move_to(values)
        result = self._noted["result"]
        changes = {
            "point": self._minimizer.point,
            # Or else workers would take it for what they have.
            "evaluation": f"{result['evaluation']}/set",
        }
        self._note(
            {
                "minimizer": self._minimizer.state(),
                "result": {**result, **changes},
            }
        )
        self._retained = self._noted, values

    def end(self):
        """Tells the other workers that `fit` has ended."""

        def note(board, now):
            if board.get("term") == self._fence.term:
                board["ended"] = True

        self._board.change(note)

    def _note(self, changes):
        """Replaces parts of the record of the minimization."""

        def replace(progress, now):
            self._fence.refuse(progress.get("term", 0))
            progress.update(changes)
            return dict(progress)

        self._noted = self._progress.change(replace)

    def _write_snapshot(self):
        if not self._snapshots.is_due():
            return
        board = self._board.read()
        record = {
            **self._noted,
            "evaluations": board["evaluation"],
            "counts": board.get("counts", {}),
        }
        now = record["minimizer"]["now"]
        if self._snapshots.write(self._stored, now, record):
            # Another process of the chief must not write over it.
            self._note({"slot": self._snapshots.slot})


def is_last(result):
    """Whether training ends with the result of an iteration."""
    return result["outcome"] != minimizer_lib.Outcome.MOVED.value
