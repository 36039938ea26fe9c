"""Processes of members that were lost together with the first server.

It does not know of them, when it was started again, before another member has
told. Members that live do so with their next heartbeat, and are waited for:
those that it has heard of, and for some heartbeats those that it has not.
"""

import time

from absl import logging

from tfdist.cluster import member_table
from tfdist.cluster import waiting

# How long a new process waits for members to tell of its earlier one.
_TOLD_SECONDS = 10.0
# How long after a first look at the table a member that lives may still be
# unknown to the server.
_UNHEARD_SECONDS = 3.0 * member_table.HEARTBEAT_SECONDS


def find(table, read, initial_workers, looked):
    """Waits until members have told of processes before the first server's.

    Args:
      table: The `MemberTable` of the first server.
      read: Callable that gives its rows; see `Membership.read`.
      initial_workers: How many of the workers, the first, may live though the
        server has not heard of them.
      looked: `time.monotonic()` of this process's first look at the table.

    Returns:
      The rows that members have put back, a list of `Member`.
    """
    states = member_table.MemberState
    found, untold = [], []

    def have_told():
        nonlocal found
        # Before the look: who comes in between is seen.
        may_come = time.monotonic() - looked < _UNHEARD_SECONDS
        found, has_told = table.read_former()
        rows = read()
        untold[:] = [
            member.name
            for told, member in zip(has_told, rows, strict=True)
            if member.state is states.ALIVE
            and not told
            and member.silent_for < _TOLD_SECONDS
        ]
        if may_come:
            untold.extend(
                member.name
                for member in rows[:initial_workers]
                if member.state is states.UNKNOWN
            )
        return not untold

    try:
        waiting.wait_until(
            have_told,
            what=lambda: f"{', '.join(untold)} to tell where this worker was",
            timeout=_TOLD_SECONDS,
        )
    except TimeoutError as error:
        logging.warning("%s Beginning without.", error)
    return found
