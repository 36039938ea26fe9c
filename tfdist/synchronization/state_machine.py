"""The state machine: what happens at each event, and in which order.

The ledger on real servers, and that of virtual clusters in the simulator and
in the tests (`in_memory`), hold the state and call this.
"""

import dataclasses

from tfdist.synchronization import base
from tfdist.synchronization import events
from tfdist.synchronization import state as state_lib


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
        return self._decide(state, attendance)

    def tick(
        self,
        state,
        attendance,
        worker=None,
        *,
        working=False,
        leaving=False,
        joining=False,
        preempted=False,
    ):
        """A heartbeat of a worker, and what it has to tell.

        What is told is a bool, or a scalar bool tensor where only the graph
        knows.

        Args:
          state: A `State`.
          attendance: An `Attendance`.
          worker: Its number; None if there is nothing to tell.
          working: Whether it has made a step that nobody has been told of.
          leaving: Whether it sends no more gradients for now.
          joining: Whether it begins to train.
          preempted: Whether it is to leave, and not to wait.

        Returns:
          The new `State`.
        """
        now = attendance.now
        for told, event in (
            (working, lambda state: events.work_on(state, worker, now)),
            (leaving, lambda state: events.leave(state, worker, preempted)),
            (joining, lambda state: events.join(state, worker, now)),
            (preempted, lambda state: events.excuse(state, worker)),
        ):
            if told is True:
                state = event(state)
            elif told is not False:
                state = state_lib.where(told, event(state), state)
        return self._decide(state, attendance)

    def _decide(self, state, attendance):
        """Decides all that can be decided."""
        state = events.attend(state, attendance, self.patience)
        return self.method.decide(state)
