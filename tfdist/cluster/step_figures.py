"""Figures of a worker's steps so far, for whoever watches a cluster.

A worker writes them beside its heartbeat in the table of members
(`tfdist.cluster.member_table`); under `tfdist launch` also into a file
(`tfdist.cluster.status_file`). Two readings give rates.
"""

import dataclasses
import math
import threading
import time
import weakref

# Fields of `StepFigures`, in the table of members.
SIZE = 7
# Exchanges over which the staleness is taken.
WINDOW = 200


@dataclasses.dataclass(frozen=True)
class StepFigures:
    """Figures of one worker's process since it started.

    Attributes:
      steps: Optimizer steps that it has made.
      staleness: The 95th percentile over its last `WINDOW` exchanges.
      exchange_seconds: Time in exchanges, without waiting.
      wait_seconds: Time in which it waited for others.
      bytes_sent: Payload.
      bytes_received: Payload.
      idle_seconds: Time since its last exchange ended; -1 before the first.
    """

    steps: int = 0
    staleness: int = 0
    exchange_seconds: float = 0.0
    wait_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    idle_seconds: float = -1.0

    def pack(self):
        """The same as a list of `SIZE` floats."""
        return [float(value) for value in dataclasses.astuple(self)]

    @classmethod
    def unpack(cls, numbers):
        """The `StepFigures` that numbers from `pack` are."""
        fields = zip(dataclasses.fields(cls), numbers, strict=True)
        return cls(*(field.type(number) for field, number in fields))


class StepMeter:
    """Adds up the exchanges of all strategies of this process.

    Any thread may read it.

    Attributes:
      figures: The `StepFigures` of the last reading.
    """

    def __init__(self):
        self.figures = StepFigures()
        # Journals, which their strategies keep, and how many of each one's
        # exchanges have been added.
        self._journals = []
        self._last = []
        self._ended = 0.0
        self._lock = threading.Lock()

    def add(self, journal):
        """Adds what a strategy exchanges from now on.

        Args:
          journal: A journal with `count` and `read_from`.
        """
        with self._lock:
            self._journals.append([weakref.ref(journal), journal.count])

    def read(self):
        """Returns the `StepFigures` as of now."""
        with self._lock:
            new = []
            for pair in self._journals:
                journal = pair[0]()
                if journal is not None:
                    records, pair[1] = journal.read_from(pair[1])
                    new += records
            self.figures = self._plus(new)
            return self.figures

    def _plus(self, records):
        if records:
            last = [one.staleness for one in records[-WINDOW:]]
            self._last = [*self._last, *last][-WINDOW:]
            # A row may be read before the step has written it.
            self._ended = max(self._ended, *(one.time for one in records))
        idle = -1.0
        if self._ended:
            idle = max(0.0, time.time() - self._ended)

        def total(name, field):
            added = sum(getattr(one, field) for one in records)
            return getattr(self.figures, name) + added

        return StepFigures(
            steps=total("steps", "local_steps"),
            staleness=_percentile(self._last, 0.95),
            idle_seconds=idle,
            **{
                name: total(name, name)
                for name in (
                    "exchange_seconds",
                    "wait_seconds",
                    "bytes_sent",
                    "bytes_received",
                )
            },
        )


def _percentile(values, share):
    """Smallest value that at least `share` of all do not exceed; 0 of none."""
    if not values:
        return 0
    return sorted(values)[math.ceil(share * len(values)) - 1]
