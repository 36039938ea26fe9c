"""Workers that go and come back, as the chief tells of them."""

import time

from absl import logging

from tfdist.cluster import fit_progress
from tfdist.cluster import member_table

_GONE = {
    member_table.MemberState.FAILED: "has failed",
    member_table.MemberState.LEFT: "has left, as it was told to",
}


class Returns:
    """Follows the table of members and tells of who goes and comes back.

    Args:
      names: Names of the workers, in the order of rows.
      own: Number of the worker that tells, which is not told of.
      worker_timeout: Seconds without a heartbeat before a worker is considered
        lost.
      clock: Callable that gives the time in seconds.
    """

    def __init__(self, names, own, worker_timeout, clock=time.monotonic):
        self._names = names
        self._own = own
        self._worker_timeout = worker_timeout
        self._clock = clock
        # By worker: the last that was seen of the process that trained, and
        # when it was last heard of.
        self._known = {}
        # Those that have been told of as gone.
        self._gone = set()

    def tick(self, membership):
        """Reads the table and logs what is new; for the heartbeat's thread.

        Args:
          membership: The `Membership`.

        Raises:
          tf.errors.OpError: The server is away.
        """
        for message in self.look(membership.look()):
            logging.warning(message)

    def look(self, rows):
        """Returns what is to be told, a list of sentences.

        Args:
          rows: List of `Member`.
        """
        said = []
        for worker, member in enumerate(rows[: len(self._names)]):
            if worker != self._own and member.life:
                said += self._look_at(worker, member)
        return said

    def _look_at(self, worker, member):
        heard = self._clock() - member.silent_for
        before, heard_before = self._known.get(worker, (None, 0.0))
        if before is None or member.life == before.life:
            self._known[worker] = member, heard
            return self._loss(worker, member)
        if member.word.number < max(before.word.number, 1):
            # It has not come to `fit`, or passes calls that are over.
            return []
        self._known[worker] = member, heard
        self._gone.discard(worker)
        if before.state == member_table.MemberState.FINISHED:
            return []
        away = f"{max(0.0, heard - heard_before):.0f} s"
        return [f"{member.name} is back after {away}: {_told(before, member)}"]

    def _loss(self, worker, member):
        """Sentence about a worker that is no more there, in a list."""
        is_lost = (
            member.state == member_table.MemberState.ALIVE
            and member.silent_for > self._worker_timeout
        )
        how = _GONE.get(member.state)
        if is_lost:
            how = f"has not been heard of for {member.silent_for:.0f} s"
        if how is None:
            self._gone.discard(worker)
            return []
        if worker in self._gone:
            return []
        self._gone.add(worker)
        place = ""
        if not member.word.reached % 3 == 0:
            place = f", at {_place(_position(member.word))} of its data"
        return [f"{member.name} {how}{place}: the others go on without it."]


def _position(word):
    return word.position(max(word.number, 1))


def _told(before, member):
    """Sentence on where a worker that is back goes on, and what it misses."""
    word = member.word
    start = before.word.position(word.number)
    end = word.first_epoch, word.first_batch
    if end == fit_progress.OVER:
        return "the others have ended this `fit`, and it has nothing to do."
    said = f"it goes on at {_place(end)} of its data."
    size = word.size or before.word.size
    if start == fit_progress.OVER or not size:
        return said
    missed = (end[0] - start[0]) * size + end[1] - start[1]
    if not missed:
        return f"{said} There it was by its last heartbeat."
    what = "left out" if missed > 0 else "done twice"
    return (
        f"{said} By its last heartbeat it had come to {_place(start)}: about "
        f"{abs(missed)} batches are {what}."
    )


def _place(position):
    epoch, batch = position
    return f"epoch {epoch + 1}, batch {batch + 1}"
