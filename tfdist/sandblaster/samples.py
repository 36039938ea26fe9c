"""Samples of the data for multi-batch L-BFGS: overlapping sets of portions."""

import dataclasses

import numpy as np

from tfdist import checks

# Of the order of portions, the same on all tasks and in all lives of a task.
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Sample:
    """The portions of one iteration, three lists of numbers.

    Attributes:
      before: Those that the sample before has as well.
      own: Those of this sample alone.
      after: Those that the next sample has as well.
    """

    before: list
    own: list
    after: list

    @property
    def portions(self):
        """All of them, a list."""
        return [*self.before, *self.own, *self.after]


class Samples:
    """Consecutive samples that overlap.

    The portions lie on a circle, in an order that is drawn once. A sample is an
    arc of it, and the next one begins where the overlap of both does. So each
    portion is used as often as any other, and a sample follows from its number.

    Args:
      num_portions: Portions of the data.
      sample: Share of the portions in a sample, more than 0 and less than 1.
      overlap: Share of a sample that the next one has as well, at most 1/2.

    Raises:
      ValueError: There are too few portions for three parts of a sample.

    References:
      Berahas, Nocedal and Takac, "A multi-batch L-BFGS method for machine
      learning", NIPS 2016, section 2.
    """

    def __init__(self, num_portions, sample, overlap):
        self._size = round(sample * num_portions)
        self._shared = max(1, round(overlap * self._size))
        if not 2 * self._shared < self._size < num_portions:
            raise ValueError(
                "Arguments `sample` and `overlap` of LBFGS must make samples "
                "of fewer portions than the data has, and of more than two "
                "overlaps: raise `portions_per_worker` of the strategy, or "
                "lower `batch_size` of `fit` if the data has no more batches. "
                f"Received: sample={sample!r} and overlap={overlap!r}, which "
                f"make samples of {self._size} of {num_portions} portions, "
                f"{self._shared} of them shared with the next"
            )
        self._order = np.random.default_rng(_SEED).permutation(num_portions)

    def __getitem__(self, number):
        """Returns the `Sample` of a number, from 0."""
        begin = number * (self._size - self._shared)
        places = np.arange(begin, begin + self._size) % len(self._order)
        portions = self._order[places].tolist()
        end = self._size - self._shared
        return Sample(
            portions[: self._shared],
            portions[self._shared : end],
            portions[end:],
        )


def check(sample, overlap):
    """Refuses shares that are not allowed.

    Args:
      sample: As of `LBFGS`.
      overlap: As of `LBFGS`.

    Raises:
      ValueError: The message says what is.
    """
    checks.number(
        "sample", sample, lambda x: 0 < x <= 1, "above 0 and at most 1"
    )
    checks.number(
        "overlap", overlap, lambda x: 0 < x < 0.5, "above 0 and below 0.5"
    )
