"""The worker's log about the others: who is waited for, and who is not."""

import time

from absl import logging

from tfdist.cluster import waiting
from tfdist.synchronization import state as state_lib

_WAITING = (state_lib.Phase.ARRIVED, state_lib.Phase.ACCEPTED)
_AS_PLANNED = (state_lib.Reason.LEFT,)
_REASONS = {
    state_lib.Reason.LEFT: "its training has ended",
    state_lib.Reason.ENDED: "its process has ended",
    state_lib.Reason.SILENT: (
        "it has not been heard of for more than "
        "worker_timeout={timeout:g} s; it may come back"
    ),
    state_lib.Reason.IDLE: (
        "it is there, and has sent no gradient for stall_timeout={idle:g} s"
    ),
    state_lib.Reason.MISSING: "it has not begun within start_timeout",
    state_lib.Reason.REPLACED: "it has been started again, and trains later",
    state_lib.Reason.PREEMPTED: "it was told to leave; it may come back",
}
_CIRCLE = (
    " At the same time, {} waits for this worker's gradient for another "
    "optimizer: it seems that a worker has skipped a step of one of several "
    "optimizers (loss scaling, or a tf.cond on its own data). With this "
    "method, all workers must take the same optimizers' steps: use "
    "mixed_bfloat16 instead of loss scaling, and gradients of zero instead of "
    "skipping a step, or a method in which no worker waits."
)


class StatusLog:
    """Compares what ledgers say from heartbeat to heartbeat.

    Args:
      method: The `Synchronization`.
      worker_names: Names of all workers, in the order of their numbers.
      worker_id: Number of this one.
      worker_timeout: Seconds without a sign of life after which a worker is
        not waited for.
      idle_timeout: Seconds after which a worker that is there and sends no
        gradient is not waited for.
    """

    def __init__(
        self, method, worker_names, worker_id, worker_timeout, idle_timeout
    ):
        self._method = method
        self._names = worker_names
        self._worker = worker_id
        self._timeout = worker_timeout
        self._idle = idle_timeout
        # By ledger: the last status of all workers, and the number of the
        # arrival that this one has been waiting with, since when.
        self._status = {}
        self._waiting = {}
        # By ledger: the last state.
        self._states = {}

    def clear(self):
        """Forgets all: states of another epoch follow."""
        self._status.clear()
        self._waiting.clear()
        self._states.clear()

    def let_go(self, ledger):
        """Forgets a `Ledger`."""
        self._status.pop(ledger, None)
        self._waiting.pop(ledger, None)
        self._states.pop(ledger, None)

    def waited_for(self, state):
        """Names of the workers whose gradients this one waits for, a list.

        Args:
          state: The `State` of a ledger, as NumPy arrays.
        """
        if state.phase[self._worker] not in _WAITING:
            return []
        return self._slow(state)

    def _slow(self, state):
        return [
            name
            for worker, name in enumerate(self._names)
            if state.status[worker] != state_lib.Status.GONE
            and state.phase[worker] == state_lib.Phase.COMPUTING
        ]

    def report(self, ledger, state):
        """Logs what has changed, and for whom this worker waits for long.

        Args:
          ledger: The `Ledger`.
          state: Its `State`, as NumPy arrays.
        """
        self._states[ledger] = state
        self._report_changes(ledger, state)
        self._report_wait(ledger, state)

    def _report_changes(self, ledger, state):
        """Logs who has gone and who has come back."""
        status = state.status.tolist()
        before = self._status.get(ledger, status)
        self._status[ledger] = status
        if status == before or not self._method.waits:
            return
        gone = state_lib.Status.GONE
        for worker, name in enumerate(self._names):
            if before[worker] == status[worker]:
                continue
            if status[worker] == gone:
                reason = state_lib.Reason(int(state.reason[worker]))
                logging.log(
                    logging.INFO if reason in _AS_PLANNED else logging.WARNING,
                    "Nobody waits for %s any more: %s.",
                    name,
                    _REASONS[reason].format(
                        timeout=self._timeout, idle=self._idle
                    ),
                )
            elif before[worker] == gone:
                absent = state.reason[worker] == state_lib.Reason.ABSENT
                again = "" if absent else " again"
                logging.warning("%s takes part%s.", name, again)
        left = sum(s != gone for s in status)
        wanted = self._method.gradients_per_update(ledger.num_enlisted)
        if 0 < left < wanted:
            # At the end of training, workers with less data end first.
            unplanned = any(
                state.status[worker] == gone
                and state.reason[worker] not in _AS_PLANNED
                for worker in range(len(self._names))
            )
            logging.log(
                logging.WARNING if unplanned else logging.INFO,
                "Each update takes %d gradients from now on, instead of %d: "
                "no more workers than that are left.",
                left,
                wanted,
            )

    def _report_wait(self, ledger, state):
        """Logs for whom this worker has been waiting for long."""
        phase = state.phase[self._worker]
        order = state.order[self._worker]
        now = time.monotonic()
        began, number, told = self._waiting.get(ledger, (now, None, 0))
        if number != order or phase not in _WAITING:
            self._waiting[ledger] = (now, order, 0)
            return
        periods = int((now - began) / waiting.REPORT_SECONDS)
        self._waiting[ledger] = (began, number, periods)
        if periods > told:
            slow = self._slow(state)
            logging.warning(
                "Waiting for the gradients of %s (%d s so far).%s",
                ", ".join(slow),
                now - began,
                self._describe_circle(ledger, slow),
            )

    def _describe_circle(self, ledger, slow):
        """Says so if workers that this one waits for wait for this one.

        States of other ledgers are at most a heartbeat old. This worker has
        waited for longer: it was waiting here at that moment, too.

        Args:
          ledger: The `Ledger` in which this worker waits.
          slow: Names of the workers that it waits for.
        """
        waiting_too = set()
        for other, state in self._states.items():
            if other is ledger or self._names[self._worker] not in self._slow(
                state
            ):
                continue
            # Where updates are not averaged, those wait that are ahead.
            ahead = state.clock > state.clock[self._worker]
            waiting_too.update(
                name
                for worker, name in enumerate(self._names)
                if name in slow
                and state.phase[worker] in _WAITING
                and (self._method.averages or ahead[worker])
            )
        if not waiting_too:
            return ""
        return _CIRCLE.format(", ".join(sorted(waiting_too)))
