"""Events in the order of virtual time, for whatever is simulated."""

import heapq
import itertools


class EventQueue:
    """Calls that are to be made at moments of virtual time.

    Those of one moment are made in the order in which they were noted.

    Attributes:
      now: The moment of the last call.
    """

    def __init__(self):
        self.now = 0.0
        self._heap = []
        self._number = itertools.count()

    def at(self, time, event, *arguments):
        """Notes that `event(*arguments)` is to be called at `time`."""
        entry = (time, next(self._number), event, arguments)
        heapq.heappush(self._heap, entry)

    def happen(self):
        """Makes the next call; returns whether there was one."""
        if not self._heap:
            return False
        self.now, _, event, arguments = heapq.heappop(self._heap)
        event(*arguments)
        return True

    def moments(self):
        """Makes all calls; yields each moment when all of it has happened."""
        heap = self._heap
        while heap:
            self.now = now = heap[0][0]
            while heap and heap[0][0] == now:
                _, _, event, arguments = heapq.heappop(heap)
                event(*arguments)
            yield now
