"""Whether training is over and who is late.

The table of members says so, and `tfdist launch` where it has started the
process.
"""

import os
import sys
import time

from tfdist.cluster import environment
from tfdist.cluster import member_table

_FINISHED = member_table.MemberState.FINISHED
_OVER = (_FINISHED, member_table.MemberState.LEFT)


def script_has_failed():
    """Whether an exception has ended this process's program."""
    return bool(
        getattr(sys, "last_type", None) or getattr(sys, "last_exc", None)
    )


def is_over(
    rows,
    *,
    known_for,
    patience,
    lost_after,
    with_evaluators=False,
    initial_workers=None,
):
    """Whether nobody trains any more, by the table of members.

    Training is over when every worker has finished. Once one of them has, a
    worker that has been silent for `lost_after` seconds is not waited for, nor
    one that has left because it was told to.

    Args:
      rows: List of `tfdist.cluster.member_table.Member`.
      known_for: Seconds for which the caller has been looking. A worker that
        was never seen counts as silent since then.
      patience: Seconds to wait for a sign of any worker while none has
        finished.
      lost_after: Seconds of silence after which a worker is not waited for
        once another has finished.
      with_evaluators: Whether evaluators among them count like workers: a
        server has to outlive them.
      initial_workers: How many of the workers, the first, are waited for if
        they have not been seen yet; None for all.

    Returns:
      A bool.

    Raises:
      TimeoutError: No worker has finished, and none has been seen for
        `patience` seconds; the message names them.
    """
    workers = [
        m
        for number, m in enumerate(rows)
        if (with_evaluators or not m.name.startswith("/job:evaluator"))
        and not _is_absent(number, m, initial_workers)
    ]
    unfinished = [m for m in workers if m.state not in _OVER]
    finished = [m for m in workers if m.state == _FINISHED]
    # An evaluator may end while workers train.
    if any(not m.name.startswith("/job:evaluator") for m in finished):
        silent_for = [known_for, *(m.silent_for for m in unfinished)]
        return not unfinished or min(silent_for) > lost_after
    # If all have left, one may come back as well as one that was lost.
    silent_for = min(known_for, *(m.silent_for for m in workers))
    if silent_for > patience:
        names = ", ".join(m.name for m in workers if m not in finished)
        raise TimeoutError(
            f"Gave up after {patience:g} s without a sign of {names}, of "
            "which none has finished training."
        )
    return False


def launcher_says():
    """Whether training is over, as `tfdist launch` tells this process.

    It sees how processes end and starts them again; in the table of members a
    worker that has ended with `sys.exit(1)` looks like one that has finished.
    As long as a worker that failed may be started again, it says no, which
    outweighs the table.

    Returns:
      A bool; None where another one has started this process, or it is a
      worker's.
    """
    path = os.environ.get(environment.END_FILE)
    return os.path.exists(path) if path else None


def lost(rows, initial_workers):
    """Names of those who have not finished when training is over.

    Args:
      rows: As for `is_over`.
      initial_workers: As for `is_over`.
    """
    return [
        m.name
        for number, m in enumerate(rows)
        if m.state not in _OVER and not _is_absent(number, m, initial_workers)
    ]


def gone(rows, lost_after):
    """Names of those that have ended before their training, or are lost.

    Args:
      rows: List of `tfdist.cluster.member_table.Member`.
      lost_after: Seconds of silence after which one is lost.
    """
    states = member_table.MemberState
    return [
        m.name
        for m in rows
        if m.state in (states.FAILED, states.LEFT)
        or (m.state == states.ALIVE and m.silent_for > lost_after)
    ]


class Expected:
    """Workers that others wait for, as far as this process knows.

    Args:
      initial_workers: How many of the workers, the first, are expected though
        they have never been seen.
      start_timeout: Seconds from now for which these are.
      clock: Callable that gives the time in seconds.
    """

    def __init__(self, initial_workers, start_timeout, clock=time.monotonic):
        self._initial_workers = initial_workers
        self._clock = clock
        self._end = clock() + start_timeout

    def includes(self, number, member, lost_after):
        """Whether a worker is there, or is to come.

        Args:
          number: Of its row.
          member: The `Member`.
          lost_after: Seconds of silence after which it is not there.
        """
        if member.state == member_table.MemberState.UNKNOWN:
            return number < self._initial_workers and self._clock() < self._end
        return (
            member.state == member_table.MemberState.ALIVE
            and member.silent_for < lost_after
        )


def missing(rows, has_come, expected, lost_after):
    """Names of the workers that have not come to where others meet.

    Args:
      rows: List of `Member`.
      has_come: Callable of a `Member`; whether it has.
      expected: An `Expected`.
      lost_after: Seconds of silence after which a worker is not missed.
    """
    return [
        member.name
        for number, member in enumerate(rows)
        if not member.name.startswith("/job:evaluator")
        and expected.includes(number, member, lost_after)
        and not has_come(member)
    ]


def _is_absent(number, member, initial_workers):
    """Whether it is a worker that may join later, and has not yet."""
    return (
        initial_workers is not None
        and number >= initial_workers
        and member.state == member_table.MemberState.UNKNOWN
        and not member.name.startswith("/job:evaluator")
    )
