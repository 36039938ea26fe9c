"""What is done about an event, on real servers and in the simulator alike."""

import dataclasses

from tfdist.synchronization import base
from tfdist.synchronization import events


@dataclasses.dataclass(frozen=True)
class Decisions:
    """Changes a `State` when something happens.

    Attributes:
      method: The `Synchronization`, resolved.
      patience: The `Patience`.
      forgets: Whether servers keep something of each worker that has to be
        forgotten when it is gone.
    """

    method: base.Synchronization
    patience: events.Patience
    forgets: bool = False

    def arrive(
        self,
        state,
        worker,
        *,
        key,
        pulled,
        attendance,
        last=False,
        finite=None,
    ):
        """A gradient has arrived.

        Args:
          state: A `State`.
          worker: Number of its worker.
          key: Under which servers keep it, scalar int64 tensor.
          pulled: Version that it was computed from, scalar int64 tensor.
          attendance: An `Attendance`.
          last: bool, whether the worker trains no more.
          finite: Whether the gradient may count, scalar bool tensor; None if
            all do.

        Returns:
          The new `State`.
        """
        if self.forgets:
            # In time: until somebody's gradient arrives, nobody is given
            # what is made of what is to be forgotten.
            state = events.forget(state, returning=worker)
        state = events.arrive(
            state,
            worker,
            key=key,
            pulled=pulled,
            now=attendance.now,
            last=last,
            finite=finite,
        )
        return self.decide(state, attendance)

    def decide(self, state, attendance):
        """Decides all that can be decided; returns the new `State`.

        Args:
          state: A `State`.
          attendance: An `Attendance`.
        """
        state = events.attend(state, attendance, self.patience)
        return self.method.decide(state)
