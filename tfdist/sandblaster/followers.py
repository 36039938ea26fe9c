"""The workers that take part in a call of `fit`, and those that are gone."""

import math
import time

from absl import logging

from tfdist.cluster import member_table
from tfdist.cluster import shared_record
from tfdist.sandblaster import evaluation

# Seconds between two looks at the table of members.
_LOOK_SECONDS = 1.0
# Seconds of waiting after which a log line says for whom.
_TELL_SECONDS = 5.0


class Followers:
    """The workers, other than the chief, that take part in a call of `fit`.

    They fetch its last parameters, which the next call replaces.

    Args:
      namespace: Prefix of the record's name, the same on all workers.
      device: The first server's.
      here: This process's device.
      worker_id: Number of this worker; the chief's is 0.
      num_workers: Number of workers, with the chief.
      membership: This process's `Membership`, None in a single process.
      tolerance: The `FaultTolerance`.
    """

    def __init__(
        self,
        namespace,
        device,
        here,
        worker_id,
        num_workers,
        membership,
        tolerance,
    ):
        # Number of a worker -> the last call of `fit` that it has ended.
        self._record = shared_record.SharedRecord(
            f"{namespace}/followers", device, here
        )
        # As the chief has read it last: a server may lose what it held.
        self._known = {}
        self._row = str(worker_id)
        self._others = range(1, num_workers)
        self._membership = membership
        self._tolerance = tolerance

    def note(self, number):
        """Tells the chief which call of `fit` this worker has ended last.

        Args:
          number: Of the call; -1 for none.
        """

        def change(rows, now):
            rows[self._row] = number

        self._record.change(change)

    def wait(self, number):
        """On the chief, waits until the others have ended a call of `fit`.

        Also for those that are there and have yet to begin it. For
        `stall_timeout` at most, unless `on_stall` is "wait"; then it logs
        without whom it goes on.

        Args:
          number: Of the call.
        """
        patience = self._tolerance.stall_timeout
        if self._tolerance.on_stall == "wait":
            patience = math.inf
        find_absent = self.absent_workers()
        gone, began, is_told = set(), time.monotonic(), False
        while True:
            gone |= set(find_absent())
            rows = self._known = {**self._known, **self._record.read()}
            away = [
                worker
                for worker in self._others
                if worker not in gone and rows.get(str(worker), -1) < number
            ]
            if not away:
                return
            waited = time.monotonic() - began
            if waited > patience:
                logging.warning(
                    "Goes on without %s: not ended this call of `fit` within "
                    "%.0f s (stall_timeout).",
                    self._names(away),
                    waited,
                )
                return
            if waited > _TELL_SECONDS and not is_told:
                is_told = True
                logging.warning(
                    "Waiting for %s to end this call of `fit` (at most %g s, "
                    "stall_timeout).",
                    self._names(away),
                    patience,
                )
            time.sleep(evaluation.POLL_SECONDS)

    def _names(self, workers):
        members = self._membership.read()
        return ", ".join(members[worker].name for worker in workers)

    def absent_workers(self):
        """Returns an `AbsentWorkers`."""
        return AbsentWorkers(self._membership, self._tolerance.worker_timeout)


class AbsentWorkers:
    """Numbers of workers that are not there any more; called to look.

    Args:
      membership: The `Membership`, or None.
      timeout: Seconds without a heartbeat after which a worker is lost.
    """

    def __init__(self, membership, timeout):
        self._membership = membership
        self._timeout = timeout
        self._looked = -_LOOK_SECONDS

    def __call__(self):
        """Returns a list of int; empty within a second of the last look."""
        now = time.monotonic()
        if self._membership is None or now - self._looked < _LOOK_SECONDS:
            return []
        self._looked = now
        alive = member_table.MemberState.ALIVE
        return [
            number
            for number, member in enumerate(self._membership.read())
            if member.state is not alive or member.silent_for > self._timeout
        ]
