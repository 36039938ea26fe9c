"""Whether training is over, as the servers' table of members tells it."""

from tfdist.cluster import members


def is_over(rows, *, known_for, patience, with_evaluators=False):
    """Whether nobody trains any more.

    Training is over when every worker has finished. Once one of them has, a
    worker that has not been seen for `members.LOST_AFTER_SECONDS` is not
    waited for.

    Args:
      rows: List of `tfdist.cluster.members.Member`.
      known_for: Seconds for which the caller has been looking. A worker that
        was never seen counts as silent since then.
      patience: Seconds to wait for a sign of any worker while none has
        finished.
      with_evaluators: Whether evaluators among them count like workers: a
        server has to outlive them.

    Returns:
      A bool.

    Raises:
      TimeoutError: No worker has finished, and none has been seen for
        `patience` seconds; the message names them.
    """
    workers = [
        m
        for m in rows
        if with_evaluators or not m.name.startswith("/job:evaluator")
    ]
    unfinished = [m for m in workers if m.state != members.State.FINISHED]
    if not unfinished:
        return True
    silent_for = min(known_for, *(m.silent_for for m in unfinished))
    if len(unfinished) < len(workers):
        return silent_for > members.LOST_AFTER_SECONDS
    if silent_for > patience:
        names = ", ".join(m.name for m in unfinished)
        raise TimeoutError(
            f"Gave up after {patience:g} s without a sign of {names}, of "
            "which none has finished training."
        )
    return False
