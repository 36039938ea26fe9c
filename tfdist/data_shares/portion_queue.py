"""The portions of one epoch: who has which, and which are done.

Pure rules without a clock or a network. The queue is read, changed and written
back as a whole (`PortionQueue.state`), by whichever worker has something to
say.
"""

import dataclasses
import zlib

# In the place of a holder's number.
_FREE, _DONE = -1, -2


@dataclasses.dataclass(frozen=True)
class Portion:
    """Batches of an epoch that one worker trains on, one after the other.

    Attributes:
      number: Of the portion, from 0.
      first: Number of its first batch in the epoch.
      end: Number of the batch after its last.
      was_begun: Whether a worker has had it before and has left it.
    """

    number: int
    first: int
    end: int
    was_begun: bool = False


class PortionQueue:
    """Portions of an epoch that workers take when they are free.

    A worker has one portion at a time. A portion that its worker leaves is
    free again. It is done once, whoever says so first.

    Args:
      epoch: Number of the epoch, greater than that of any epoch before.
      ends: By portion, the number of the batch after its last, from `cut`.

    Attributes:
      epoch: As given.
      ends: As given.
      counts: Dict of the workers' numbers to how many portions each has done.
      returned: How many portions have become free again.
    """

    def __init__(self, epoch, ends):
        self.epoch = epoch
        self.ends = list(ends)
        self.counts = {}
        self.returned = 0
        self._holders = [_FREE] * len(self.ends)
        self._begun = [False] * len(self.ends)

    def __len__(self):
        return len(self._holders)

    def take(self, worker):
        """Gives a worker a portion; one that it still has is free again.

        Args:
          worker: Its number.

        Returns:
          The `Portion`, free ones in their order; None if none is free.
        """
        self.give_back([worker])
        for number, holder in enumerate(self._holders):
            if holder == _FREE:
                was_begun = self._begun[number]
                self._holders[number], self._begun[number] = worker, True
                first = self.ends[number - 1] if number else 0
                return Portion(number, first, self.ends[number], was_begun)
        return None

    def complete(self, number, worker):
        """Notes that a portion is done, whoever has it.

        Args:
          number: Of the portion.
          worker: Number of the worker that has done it.

        Returns:
          Whether it was not done before.
        """
        if self._holders[number] == _DONE:
            return False
        self._holders[number], self._begun[number] = _DONE, True
        self.counts[worker] = self.counts.get(worker, 0) + 1
        return True

    def give_back(self, workers):
        """Makes the portions that some workers have free again.

        Args:
          workers: Their numbers.

        Returns:
          The numbers of the portions, a list.
        """
        found = [k for k, one in enumerate(self._holders) if one in workers]
        for number in found:
            self._holders[number] = _FREE
        self.returned += len(found)
        return found

    def know(self, done, held):
        """Notes what a worker knows, where a new queue has lost it.

        Args:
          done: Numbers of portions that are done.
          held: Dict of workers' numbers to those of their portions.
        """
        for number in done:
            self._holders[number], self._begun[number] = _DONE, True
        for worker, number in held.items():
            if self._holders[number] == _FREE:
                self._holders[number], self._begun[number] = worker, True

    def held(self):
        """Returns a dict of the workers' numbers to those of their portions."""
        return {one: k for k, one in enumerate(self._holders) if one >= 0}

    def done(self):
        """Returns the numbers of the portions that are done, a list."""
        return [k for k, one in enumerate(self._holders) if one == _DONE]

    @property
    def is_done(self):
        """Whether all portions are done."""
        return all(one == _DONE for one in self._holders)

    def state(self):
        """Returns what `restored` needs, which JSON can hold."""
        return {
            "epoch": self.epoch,
            "ends": self.ends,
            "counts": sorted(self.counts.items()),
            "returned": self.returned,
            "holders": self._holders,
            "begun": self._begun,
        }


def restored(state):
    """Returns the `PortionQueue` of a state.

    Args:
      state: From `PortionQueue.state`.
    """
    made = PortionQueue(state["epoch"], state["ends"])
    made.counts = dict(state["counts"])
    made.returned = state["returned"]
    made._holders = list(state["holders"])  # noqa: SLF001
    made._begun = list(state["begun"])  # noqa: SLF001
    return made


def cut(batches, workers, portions_per_worker, multiple=1):
    """Cuts an epoch into portions, which are smaller at its end.

    So that nobody waits long for who has taken the last one: a portion is at
    most half of what a worker's part of the rest would be (guided
    self-scheduling; Polychronopoulos and Kuck, IEEE Transactions on Computers,
    1987).

    Args:
      batches: Number of batches of the epoch.
      workers: Number of workers.
      portions_per_worker: How many portions of the size of the first ones each
        worker would have if all were equally fast.
      multiple: Sizes of all but the last are multiples of it: batches of one
        call of a training function.

    Returns:
      By portion, the number of the batch after its last, a list of ints.
    """
    most = -(-batches // (workers * portions_per_worker))
    ends, end = [], 0
    while end < batches:
        size = min(most, -(-(batches - end) // (2 * workers)))
        end = min(end + -(-size // multiple) * multiple, batches)
        ends.append(end)
    return ends


def checksum(ends):
    """Returns a number that tells one cut of an epoch from another.

    Args:
      ends: By portion, the number of the batch after its last, from `cut`.
    """
    return zlib.crc32(repr(list(ends)).encode())
