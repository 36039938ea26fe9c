"""Workers that die, and those that come back."""

import dataclasses
import itertools

import numpy as np

from tfdist import checks


@dataclasses.dataclass(frozen=True)
class Failure:
    """A worker dies, and may come back.

    Attributes:
      worker: Its number.
      at: Seconds; at 0 it joins late.
      until: Seconds at which another process takes its place, with what is
        left of its share of the data; None: never.
    """

    worker: int
    at: float
    until: float | None = None

    def __post_init__(self):
        checks.count("Failure: worker", self.worker, 0)
        checks.not_negative("Failure: at", self.at)
        if self.until is None:
            return
        checks.not_negative("Failure: until", self.until)
        if not self.until > self.at:
            raise ValueError(
                f"Argument `until` of Failure must be later than at={self.at}. "
                f"Received: until={self.until!r}"
            )


def check(failures, num_workers):
    """Refuses failures of workers that there are not, or that are dead.

    Args:
      failures: `Failure`s.
      num_workers: Number of workers.

    Raises:
      ValueError: One is refused.
    """
    for failure in failures:
        if not 0 <= failure.worker < num_workers:
            raise ValueError(
                "Argument `failures` must name workers from 0 to "
                f"{num_workers - 1}. Received: failures={failure}"
            )
    ordered = sorted(failures, key=lambda f: (f.worker, f.at))
    for one, other in itertools.pairwise(ordered):
        if one.worker == other.worker and not (one.until or np.inf) < other.at:
            raise ValueError(
                "Argument `failures` must have a worker back before it dies "
                f"again. Received: {one} and {other}"
            )
