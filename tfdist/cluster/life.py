"""A worker's membership from its start to the end of its process."""

import atexit
import sys
import weakref

from tfdist.cluster import members


def join(config, devices):
    """Enters this worker into the servers' tables until the process ends.

    The servers are told how it ended: a script that ran to its end (or left
    with status 0) has finished, one that raised has failed and may be
    started again.

    Args:
      config: The `ClusterConfig` of a worker or an evaluator.
      devices: The servers' devices.

    Returns:
      The `Membership`.
    """
    membership = members.Membership(config, devices)
    atexit.register(_leave, weakref.ref(membership))
    return membership


def _leave(reference):
    membership = reference()
    if membership is None:
        return
    raised = getattr(sys, "last_type", None) or getattr(sys, "last_exc", None)
    membership.leave(members.State.FAILED if raised else members.State.FINISHED)
