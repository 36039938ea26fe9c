"""Asks servers whether they are there, and which life they are in."""

import contextlib

import tensorflow as tf

from tfdist.cluster import sessions

# Seconds for a server to say so.
SECONDS = 3.0


def read(address, task, timeout, job="ps"):
    """The number that a server's runtime has drawn when it started.

    It needs nothing of the cluster that this process is connected to: a
    server that hangs, is gone or was started again disturbs nobody.

    Args:
      address: `host:port` of the task.
      task: Its number.
      timeout: Seconds for its answer.
      job: Its job.

    Returns:
      An int, or None where nobody answers in time.
    """
    session = None
    try:
        session = sessions.open_session(
            address, job, task, tf.Graph(), sessions.Deadline(timeout)
        )
        for device in session.list_devices():
            if f"/job:{job}/replica:0/task:{task}/" in device.name:
                return device.incarnation
    except (tf.errors.OpError, OSError):
        pass
    finally:
        # As a context it would be closed in a thread, which prints errors.
        if session is not None:
            with contextlib.suppress(tf.errors.OpError):
                session.close()
    return None


def read_all(config):
    """The numbers of all servers of a cluster, one after the other.

    Args:
      config: The `ClusterConfig`.

    Returns:
      A list of int, None where nobody answers within `SECONDS`.
    """
    return [
        read(address, task, SECONDS)
        for task, address in enumerate(config.ps_addresses)
    ]
