"""Reads a running cluster's table of members, from outside of it."""

import tensorflow as tf

from tfdist.cluster import member_table
from tfdist.cluster import sessions
from tfdist.cluster import versions


class ReadError(Exception):
    """There is no table to read; the message says why."""


def read(address, timeout, checksum=None):
    """Reads the table of the first server of a cluster; changes nothing.

    Args:
      address: Its `host:port`.
      timeout: Seconds.
      checksum: `versions.checksum` of the cluster; None for any cluster.

    Returns:
      A list of `Member`: all workers and evaluators.

    Raises:
      ReadError: It is no such server, or does not answer in time.
    """
    deadline = sessions.Deadline(timeout)
    with (
        tf.Graph().as_default() as graph,
        tf.device("/job:ps/replica:0/task:0/device:CPU:0"),
    ):
        fetches = [*member_table.build_read(), versions.build_read()]
    try:
        session = sessions.open_session(address, "ps", 0, graph, deadline)
        try:
            rows, now, text = sessions.run(session, fetches, deadline)
        finally:
            session.close()
    except OSError as error:
        raise ReadError("nobody listens there") from error
    except (
        tf.errors.FailedPreconditionError,
        tf.errors.NotFoundError,
    ) as error:
        raise ReadError("it has no workers yet") from error
    except tf.errors.DeadlineExceededError as error:
        raise ReadError(f"nothing within {timeout:g} s") from error
    except tf.errors.OpError as error:
        raise ReadError(
            f"is it the first one? {type(error).__name__}: "
            f"{sessions.reason(error)}"
        ) from error
    told = versions.parse(text)
    if checksum not in (None, told.get("workers")):
        raise ReadError("it is one of another cluster")
    names = told.get("members", ())
    try:
        return member_table.parse(names, rows, now)
    except ValueError as error:
        raise ReadError("it runs another version of tfdist") from error
