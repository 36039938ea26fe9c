"""Whether training is over and who is late, by the table of members."""

from tfdist.cluster import member_table

_OVER = (member_table.MemberState.FINISHED, member_table.MemberState.LEFT)


def is_over(
    rows, *, known_for, patience, with_evaluators=False, initial_workers=None
):
    """Whether nobody trains any more.

    Training is over when every worker has finished. Once one of them has, a
    worker that has not been seen for `member_table.LOST_AFTER_SECONDS` is not
    waited for, nor one that has left because it was told to.

    Args:
      rows: List of `tfdist.cluster.member_table.Member`.
      known_for: Seconds for which the caller has been looking. A worker that
        was never seen counts as silent since then.
      patience: Seconds to wait for a sign of any worker while none has
        finished.
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
    if any(m.state == member_table.MemberState.FINISHED for m in workers):
        silent_for = [known_for, *(m.silent_for for m in unfinished)]
        return (
            not unfinished or min(silent_for) > member_table.LOST_AFTER_SECONDS
        )
    # If all have left, one may come back as well as one that was lost.
    silent_for = min(known_for, *(m.silent_for for m in workers))
    if silent_for > patience:
        names = ", ".join(m.name for m in workers)
        raise TimeoutError(
            f"Gave up after {patience:g} s without a sign of {names}, of "
            "which none has finished training."
        )
    return False


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


def missing(rows, arrivals, to_come):
    """Names of the workers that have not come to the meeting point so often.

    Whoever has ended, or is silent for too long, is not missing.

    Args:
      rows: List of `Member`.
      arrivals: How many times.
      to_come: How many of the workers, the first, are missing though they
        have never been seen.
    """

    def is_expected(number, member):
        if member.state == member_table.MemberState.UNKNOWN:
            return number < to_come
        return (
            member.state == member_table.MemberState.ALIVE
            and member.silent_for < member_table.LOST_AFTER_SECONDS
        )

    return [
        member.name
        for number, member in enumerate(rows)
        if not member.name.startswith("/job:evaluator")
        and is_expected(number, member)
        and member.arrivals < arrivals
    ]


def _is_absent(number, member, initial_workers):
    """Whether it is a worker that may join later, and has not yet."""
    return (
        initial_workers is not None
        and number >= initial_workers
        and member.state == member_table.MemberState.UNKNOWN
        and not member.name.startswith("/job:evaluator")
    )
