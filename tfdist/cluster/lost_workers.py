"""Workers that do not go on with a call of `fit`."""

import time

from tfdist.cluster import member_table

_STATES = member_table.MemberState


class LostWorkers:
    """Workers of a call of `fit` that are gone, or have left it.

    Args:
      read: Callable that gives the workers' `Member`s, a list.
      begun: How far a worker is that has begun the call, see `fit_progress`.
      ended: The same of one that has ended it.
      timeout: Seconds without a heartbeat after which a worker is lost.
    """

    def __init__(self, read, begun, ended, timeout):
        self._read = read
        self._begun = begun
        self._ended = ended
        self._timeout = timeout
        # When a worker was first not seen at all, as where a server has just
        # been started again.
        self._unseen = {}

    def find(self, workers):
        """Returns those of some workers that are lost, a list.

        Args:
          workers: Numbers of workers that have begun the call.
        """
        rows = self._read()
        return [k for k in sorted(workers) if self._is_lost(k, rows[k])]

    def _is_lost(self, worker, member):
        if member.state is _STATES.UNKNOWN:
            now = time.monotonic()
            return now - self._unseen.setdefault(worker, now) > self._timeout
        self._unseen.pop(worker, None)
        return (
            member.state is not _STATES.ALIVE
            or member.silent_for > self._timeout
            # A new process, which has yet to begin; or one that has stopped.
            or not self._begun <= member.word.reached < self._ended
        )
