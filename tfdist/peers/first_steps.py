"""The first steps of optimizers, which all workers take in the same order.

A message says by the number of a lane what it is about. So all workers meet
when they make a lane, and compare which variables it trains: updates never
reach other variables, even of the same shape.
"""

import hashlib
import json
import zlib

from tfdist.all_reduce.consistency import Moment
from tfdist.all_reduce.variables import plain

_NAMES = 3


class FirstSteps:
    """The variables that lanes train, on this worker and on the others.

    Args:
      engine: The `PeerEngine`.

    Attributes:
      lanes: By lane, in order of creation: the numbers, in order of creation,
        of its optimizer's count of steps and of the variables that it trains;
        a list of lists.
      slots: By lane the numbers of all that its optimizer keeps, the same.
      at_join: Both of a snapshot, by lane: a list of pairs.
      places: By number of a variable: the meeting in which all have agreed on
        its value, and its place there; a dict of lists.
    """

    def __init__(self, engine):
        self._engine = engine
        self.lanes = []
        self.slots = []
        self.at_join = []
        self.places = {}

    def begin(self, optimizer, variables):
        """Called by all workers, each before it makes a lane.

        Args:
          optimizer: A Keras optimizer.
          variables: Keras variables that it trains.

        Raises:
          ValueError: Another worker makes another lane.
        """
        variables = list(map(plain, variables))
        # Where gradients are accumulated, `iterations` is a quotient.
        counters = [
            one
            for one in map(plain, optimizer.variables)
            if getattr(one, "counts_steps", False)
        ]
        known = [*counters, *variables]
        numbers = self._engine.numbers_of(known)
        slots = self._engine.numbers_of(map(plain, optimizer.variables))
        if self.was_at_join(len(self.lanes)):
            # All of it has the snapshot's values, by these numbers.
            is_same = self.at_join[len(self.lanes)] == (numbers, slots)
        else:
            is_same = self._is_same(numbers, known)
        if not is_same:
            names = ", ".join(v.name for v in variables[:_NAMES])
            raise ValueError(
                f"Optimizer {optimizer.name!r} takes its first step for "
                f"{names} ({len(variables)} variables), and other workers "
                "take one for other variables, or of another one. All workers "
                "must make the same models and optimizers in the same order, "
                "and must take in the same order the first step of each "
                "optimizer and of each set of variables that it trains. What "
                "a step trains must not depend on a worker's data. If it "
                "trains a part of a model, give the rest gradients of zero."
            )
        self.lanes.append(numbers)
        self.slots.append(slots)

    def name_of(self, lane):
        """Text of what a lane trains, the same in a run that is resumed."""
        numbers = json.dumps(self.lanes[lane]).encode()
        return f"codec/{hashlib.sha256(numbers).hexdigest()[:16]}"

    def was_at_join(self, lane):
        """Whether a lane was in the snapshot: the others have it already."""
        return lane < len(self.at_join)

    def _is_same(self, numbers, variables):
        if not self._engine.roster.others:
            return True
        # A worker may have made more models than the others, but those of a
        # `fit` are known by the meeting at its beginning.
        places = [
            self.places.get(number, [0, getattr(variable, "place", None)])
            for number, variable in zip(numbers, variables, strict=True)
        ]
        checksum = zlib.crc32(json.dumps(places).encode())
        rows = self._engine.consistency.meet(Moment.STEP, checksum)
        return bool((rows[:, 0] == checksum).all())

    def note_agreed(self, variables):
        """Called when all workers have agreed on variables' values.

        Args:
          variables: List of `WorkerVariable`, in the same order on all.
        """
        if not self._engine.roster.others:
            return
        meeting = self._engine.collectives.number
        numbers = self._engine.numbers_of(variables)
        for place, number in enumerate(numbers):
            if variables[place].is_agreed:
                self.places.setdefault(number, [meeting, place])

    @property
    def position(self):
        """The part of a snapshot that a joiner goes on from, for JSON."""
        return {
            "lanes": self.lanes,
            "slots": self.slots,
            "places": [*self.places.items()],
        }

    def take_position(self, position):
        """Goes on where another worker is; see `position`."""
        both = zip(position["lanes"], position["slots"], strict=True)
        self.at_join = [*both]
        self.places = dict(position["places"])

    def is_as_at_join(self, variables, meeting):
        """Whether variables have the numbers of those of a snapshot.

        Args:
          variables: Those that all have agreed on when `fit` began, in the
            order in which the others have, a list of `WorkerVariable`.
          meeting: The number of the meeting in which they have.
        """
        there = {(m, place): n for n, (m, place) in self.places.items()}
        return all(
            there.get((meeting, place), number) == number
            for place, number in enumerate(self._engine.numbers_of(variables))
        )
