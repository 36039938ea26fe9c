"""The evaluations of a run, so many epochs apart."""

import math


class EpochEvaluator:
    """Counts gradients, and evaluates when there are enough of them.

    Args:
      num_batches: Gradients of an epoch.
      every: Epochs between two evaluations.
      measure: Callable that returns the mean loss of the steps since its last
        call, None if there were none, and a dict of other figures.

    Attributes:
      rows: See `History.evaluations`.
      is_due: Whether enough gradients have been counted.
      diverged: Whether a loss was infinite or NaN.
    """

    def __init__(self, num_batches, every, measure):
        self._num_batches = num_batches
        self._every = every
        self._measure = measure
        self._decided = 0
        # How many marks, `every` epochs apart, have been passed.
        self._passed = 0
        self.rows = []
        self.is_due = False
        self.diverged = False

    @property
    def _epoch(self):
        return self._decided / self._num_batches

    @property
    def is_behind(self):
        """Whether anything has been counted since the last one."""
        return self.rows[-1]["epoch"] != self._epoch

    def count(self, gradients):
        """Counts gradients that have been decided over."""
        self._decided += gradients
        passed = math.floor(self._epoch / self._every + 1e-9)
        if passed > self._passed:
            self._passed = passed
            self.is_due = True

    def evaluate(self, seconds, updates):
        """Evaluates; one after as many gradients is replaced.

        Args:
          seconds: Virtual time.
          updates: Updates of the parameters so far.
        """
        self.is_due = False
        loss, figures = self._measure()
        if self.rows and not self.is_behind:
            last = self.rows.pop()
            loss = last["train_loss"] if loss is None else loss
        self.rows.append(
            {
                "seconds": seconds,
                "epoch": self._epoch,
                "updates": updates,
                "train_loss": loss,
                **figures,
            }
        )
        seen = [loss, figures.get("loss")]
        self.diverged = any(
            x is not None and not math.isfinite(x) for x in seen
        )
