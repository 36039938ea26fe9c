"""Portions of one evaluation: who has which, and whose answer counts.

Pure rules without a clock or a network. The queue is read, changed and written
back as a whole (`state`), by whichever task has something to say.
"""

import dataclasses
import statistics


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A worker's attempt at a portion.

    Attributes:
      ticket: Number of the attempt, different from all others of the cluster.
      portion: Number of the portion.
      worker: Number of the worker.
      began: Time at which it began, in seconds.
    """

    ticket: int
    portion: int
    worker: int
    began: float


class WorkQueue:
    """Portions that workers take when they are free.

    Each portion counts once: the first attempt that is completed. When all
    portions were taken, a free worker takes one that has been under way for
    `patience` times the median duration as well (a backup task: Dean and
    Ghemawat, "MapReduce", OSDI 2004).

    Args:
      portions: Number of portions.
      patience: Median durations after which a portion is given to one more
        worker, more than 1.
      first_ticket: Number of the first attempt.
      typical: Duration of a portion in seconds that holds until the first of
        this queue is completed; None if it is not known.

    Attributes:
      accepted: By portion the ticket whose answer counts, or None.
      next_ticket: Number of the next attempt.
    """

    def __init__(self, portions, patience, first_ticket=0, typical=None):
        self.accepted = [None] * portions
        self.next_ticket = first_ticket
        self._patience = patience
        self._typical = typical
        self._durations = []
        self._attempts = []

    def take(self, worker, now):
        """Gives a worker something to do.

        Args:
          worker: Number of the worker. Attempts that it has left open are
            given up: a process does one thing at a time.
          now: Time in seconds.

        Returns:
          An `Attempt`; None if there is nothing to do at the moment.
        """
        self.give_back([worker])
        portion = self._next_portion(now)
        if portion is None:
            return None
        made = Attempt(self.next_ticket, portion, worker, now)
        self.next_ticket += 1
        self._attempts.append(made)
        return made

    def _next_portion(self, now):
        under_way = {one.portion for one in self._attempts}
        for portion, ticket in enumerate(self.accepted):
            if ticket is None and portion not in under_way:
                return portion
        if not self._attempts or self.typical is None:
            return None
        began, portion = self._longest_under_way()
        late = now - began > self._patience * self.typical
        return portion if late else None

    def _longest_under_way(self):
        """Time at which it began, and number of a portion."""
        # Since the last attempt: a backup of a backup waits as long again.
        begun = {one.portion: one.began for one in self._attempts}
        return min((began, portion) for portion, began in begun.items())

    @property
    def backup_due(self):
        """Time after which there is a backup task; None if it is not known."""
        if not self._attempts or self.typical is None:
            return None
        return self._longest_under_way()[0] + self._patience * self.typical

    def complete(self, ticket, now):
        """An attempt has come to its end.

        Args:
          ticket: Its number.
          now: Time in seconds.

        Returns:
          Whether it counts: False if another one of the same portion did, or
          if it was given up.
        """
        for made in self._attempts:
            if made.ticket == ticket:
                break
        else:
            return False
        self.accepted[made.portion] = ticket
        self._durations.append(now - made.began)
        self._attempts = [
            one for one in self._attempts if one.portion != made.portion
        ]
        return True

    def is_open(self, ticket):
        """Whether the answer of an attempt would count."""
        return any(one.ticket == ticket for one in self._attempts)

    def give_back(self, workers):
        """Portions that some workers have taken are there again.

        Args:
          workers: Their numbers.

        Returns:
          Whether there were any.
        """
        kept = [one for one in self._attempts if one.worker not in workers]
        found = len(kept) < len(self._attempts)
        self._attempts = kept
        return found

    @property
    def is_done(self):
        """Whether all portions are completed."""
        return None not in self.accepted

    @property
    def typical(self):
        """Median duration of a portion in seconds; None if not known."""
        if self._durations:
            return statistics.median(self._durations)
        return self._typical

    def state(self):
        """Returns what `restored` needs, which JSON can hold."""
        return {
            "accepted": self.accepted,
            "next_ticket": self.next_ticket,
            "patience": self._patience,
            "typical": self._typical,
            "durations": self._durations,
            "attempts": [
                dataclasses.astuple(attempt) for attempt in self._attempts
            ],
        }


def restored(state):
    """Returns the `WorkQueue` of a state.

    Args:
      state: From `WorkQueue.state`.
    """
    made = WorkQueue(
        len(state["accepted"]),
        state["patience"],
        state["next_ticket"],
        state["typical"],
    )
    made.accepted = list(state["accepted"])
    made._durations = list(state["durations"])  # noqa: SLF001
    made._attempts = [Attempt(*one) for one in state["attempts"]]  # noqa: SLF001
    return made
