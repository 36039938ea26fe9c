"""Sessions with the server of any task of any cluster, which end in time.

TensorFlow's eager runtime knows one cluster, which this process may be a part
of. A session is a client of its own: it neither needs that nor disturbs it,
runs in any thread, and gives up when its time is over. One costs some
milliseconds, and when it is closed it leaves nothing on the server. Whoever is
killed does not close his (`end_all`).
"""

import contextlib
import socket
import time

import tensorflow as tf

from tfdist import private_tensorflow

# For a connection to who may be gone.
_LISTENS_SECONDS = 2.0


class Deadline:
    """The end of the time for something.

    Args:
      seconds: From now.
    """

    def __init__(self, seconds):
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def milliseconds(self):
        """Seconds that are left, at least 1: TensorFlow's 0 is no limit."""
        return max(1, round(1000 * (self._end - time.monotonic())))


def open_session(address, job, task, graph, deadline):
    """Opens a session with the server of one task.

    Args:
      address: Its `host:port`.
      job: Its job, such as "ps".
      task: Its index in the job.
      graph: The `tf.Graph` that runs there.
      deadline: The `Deadline` of all that is done in the session. Closing it
        may take as long once more, if the server hangs in the middle of it.

    Returns:
      A `tf.compat.v1.Session`, in which what is computed is what is written.

    Raises:
      ConnectionRefusedError: Nobody listens at the address.
    """
    _check_that_it_listens(address, deadline)
    config = tf.compat.v1.ConfigProto(
        operation_timeout_in_ms=deadline.milliseconds(),
        # A server that knows of others would ask them as well.
        device_filters=[f"/job:{job}/task:{task}"],
    )
    return tf.compat.v1.Session(
        f"grpc://{address}", graph=graph, config=exactly(config)
    )


def run(session, fetches, deadline, feeds=None):
    """Runs a part of a session's graph.

    Args:
      session: From `open_session`.
      fetches: As in `tf.compat.v1.Session.run`.
      deadline: The `Deadline`.
      feeds: Dict of placeholder to value.

    Returns:
      The values.

    Raises:
      tf.errors.DeadlineExceededError: They did not come in time.
      tf.errors.OpError: What the server says.
    """
    options = tf.compat.v1.RunOptions(timeout_in_ms=deadline.milliseconds())
    return session.run(fetches, feeds, options=options)


def close(session, address):
    """Closes a session whose server may be gone.

    TensorFlow would ask a server that is gone again and again, for as long as
    the deadline of the session was at first.

    Args:
      session: From `open_session`.
      address: With which it was opened.
    """
    if not listens(address, _LISTENS_SECONDS):
        private_tensorflow.abandon(session)
        return
    with contextlib.suppress(tf.errors.OpError):
        session.close()


def end_all(address):
    """Ends all sessions with a server, whoever's; what it holds stays.

    Args:
      address: Its `host:port`.

    Raises:
      tf.errors.OpError: What the server says.
    """
    # It also empties containers of resources: this one has nothing.
    tf.compat.v1.Session.reset(f"grpc://{address}", ["tfdist/nothing"])


def exactly(config):
    """`config`, with which what is computed is what is written.

    TensorFlow would turn a division by a constant into a multiplication,
    which rounds otherwise.
    """
    options = config.graph_options
    options.rewrite_options.disable_meta_optimizer = True
    options.optimizer_options.opt_level = -1
    return config


def reason(error):
    """Returns a server's error message, without the names of operations.

    Args:
      error: A `tf.errors.OpError`.
    """
    lines = [line.strip() for line in error.message.splitlines()]
    said = [line for line in lines if line and not line.startswith("[[")]
    return said[-1] if said else "no reason given"


def listens(address, seconds):
    """Returns whether anything at `address` accepts a connection.

    Args:
      address: A `host:port`.
      seconds: After which it counts as absent.
    """
    try:
        try_port(address, seconds)
    except OSError:
        return False
    return True


def try_port(address, seconds):
    """Connects to what listens at `address`, and closes the connection.

    Raises:
      OSError: As of `socket.create_connection`.
    """
    host, port = address.rsplit(":", 1)
    socket.create_connection((host.strip("[]"), port), seconds).close()


def _check_that_it_listens(address, deadline):
    """TensorFlow would wait for who is not there."""
    try:
        try_port(address, deadline.milliseconds() / 1000)
    except ConnectionRefusedError:
        raise
    except OSError:
        pass  # The session says what it is, if it does not get through.
