"""A worker's membership from its start to the end of its process."""

import atexit
import contextlib

import tensorflow as tf

from tfdist.cluster import connection
from tfdist.cluster import member_table
from tfdist.cluster import membership as membership_lib
from tfdist.cluster import preemption
from tfdist.cluster import refusal
from tfdist.cluster import termination
from tfdist.cluster import versions

# One membership per cluster, however many strategies a script makes, and
# wherever the servers are: the row in their tables is the process's.
_memberships = {}
# Clusters whose servers, at these addresses, are known to be theirs.
_checked = set()


def join(config, devices, timeout):
    """Enters this process into the servers' tables until it ends.

    The servers are told how it ended: a script that ran to its end has
    finished, one that raised has failed and may be started again, one that was
    told to leave has left and may come back. Python does not say whether
    `sys.exit` has ended the script, and with which status. So one whose last
    `fit` was ended by an exception, and that has not come to a `barrier`
    since, has failed too; any other one has finished.

    Args:
      config: The `ClusterConfig` of a worker or an evaluator.
      devices: The servers' devices.
      timeout: Seconds to wait until all servers are ready.

    Returns:
      The `Membership`, the same for each call with the same cluster, whose
      servers may have moved.

    Raises:
      ClusterConfigError: A server is one of another cluster, or the cluster
        does not list this task.
      TimeoutError: A server is not ready; the message names it.
    """
    key = (config.task_name, config.fingerprint)
    if key not in _memberships:
        if config.task_name not in member_table.names_of(config):
            raise refusal.ClusterConfigError(
                'TF_CONFIG["cluster"]["evaluator"] must list the evaluator, in '
                "all tasks: servers wait for it. Received: a cluster without "
                f"{config.task_name}."
            )
        membership = membership_lib.Membership(config, devices)
        _memberships[key] = membership
        atexit.register(_leave, membership)
    membership = _memberships[key]
    if membership.addresses != config.ps_addresses:
        # Servers have moved, and no training step has found that out.
        membership.reconnected(config)
    if config not in _checked:
        membership.wait_until_entered(
            timeout, lambda: _connect_anew(config, membership)
        )
        versions.compare(config)
        if membership.is_foreign:
            raise refusal.ClusterConfigError(
                f"Parameter server {config.ps_names[0]} at "
                f"{config.ps_addresses[0]} keeps other things about workers "
                "than this worker tells it: it runs another version of tfdist."
            )
        _checked.add(config)
    return membership


def _connect_anew(config, membership):
    """For servers that were started again since this process connected."""
    if connection.absent(config):
        return
    with contextlib.suppress(tf.errors.OpError):
        connection.reconnect(config)
        membership.reconnected(config)


def _leave(membership):
    if termination.script_has_failed():
        membership.leave(member_table.MemberState.FAILED)
    elif preemption.is_leaving():
        membership.leave(member_table.MemberState.LEFT)
    elif membership.was_abandoned():
        membership.leave(member_table.MemberState.FAILED)
    else:
        membership.leave(member_table.MemberState.FINISHED)
