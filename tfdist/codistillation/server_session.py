"""Talks to a parameter server of any group, in sessions that end in time.

Each conversation has a session of its own (`tfdist.cluster.sessions`), so that
a server that was started again on the same address needs no care.
"""

import contextlib
import dataclasses

import tensorflow as tf

from tfdist.cluster import sessions
from tfdist.codistillation.exchange import PeerUnavailableError

_NOT_THERE = (tf.errors.FailedPreconditionError, tf.errors.NotFoundError)


@dataclasses.dataclass(frozen=True)
class Server:
    """A parameter server of a group.

    Attributes:
      group: Number of the group.
      task: Index of the server in its cluster.
      address: Its `host:port`.
    """

    group: int
    task: int
    address: str

    def __str__(self):
        return (
            f"parameter server /job:ps/task:{self.task} of group {self.group} "
            f"at {self.address}"
        )

    def device(self):
        """Scope in which operations are the server's."""
        return tf.device(f"/job:ps/task:{self.task}/device:CPU:0")


class ServerSession(contextlib.AbstractContextManager):
    """A session with one server.

    Args:
      server: The `Server`.
      graph: The `tf.Graph` that runs there.
      deadline: The `Deadline` of all that is done in the session. Leaving it
        may take as long once more, if the server hangs in the middle of it.

    Raises:
      PeerUnavailableError: On entry, if nobody listens at the address.
    """

    def __init__(self, server, graph, deadline):
        self._server = server
        self._graph = graph
        self._deadline = deadline
        self._session = None

    def __enter__(self):
        try:
            self._session = sessions.open_session(
                self._server.address,
                "ps",
                self._server.task,
                self._graph,
                self._deadline,
            )
        except ConnectionRefusedError as error:
            raise PeerUnavailableError(
                f"{self._server} is not there: nobody listens at its address"
            ) from error
        return self

    def __exit__(self, *exc_info):
        with contextlib.suppress(tf.errors.OpError):
            self._session.close()

    def run(self, fetches, what):
        """Runs a part of the graph.

        Args:
          fetches: As in `tf.compat.v1.Session.run`.
          what: What is asked for, for the message.

        Returns:
          The values.

        Raises:
          PeerUnavailableError: They are not there, or did not come in time.
        """
        try:
            return sessions.run(self._session, fetches, self._deadline)
        except tf.errors.DeadlineExceededError as error:
            raise PeerUnavailableError(
                f"{self._server} did not answer within "
                f"{self._deadline.seconds:g} s, asked for {what}: is it "
                "running, and is its address right?"
            ) from error
        except _NOT_THERE as error:
            raise PeerUnavailableError(
                f"{self._server} does not have {what}: its group has not "
                "begun to exchange yet"
            ) from error
        except tf.errors.OpError as error:
            raise PeerUnavailableError(
                f"{self._server} did not give {what}: "
                f"{type(error).__name__}: {sessions.reason(error)}"
            ) from error


def leave_text(server, name, text, deadline):
    """Leaves a text on a server, in place of what was there.

    Args:
      server: The `Server`.
      name: Of the text.
      text: A string.
      deadline: The `Deadline`.

    Raises:
      PeerUnavailableError: The server does not take it.
    """
    with tf.Graph().as_default() as graph, server.device():
        write = tf.raw_ops.AssignVariableOp(
            resource=_text(name), value=tf.constant(text)
        )
    with ServerSession(server, graph, deadline) as session:
        session.run(write, "an answer")


def read_text(server, name, what, deadline):
    """The text that was left on a server.

    Args:
      server: The `Server`.
      name: Of the text.
      what: What it is, for the message.
      deadline: The `Deadline`.

    Returns:
      A string, or bytes that are none.

    Raises:
      PeerUnavailableError: There is none, or it did not come in time.
    """
    with tf.Graph().as_default() as graph, server.device():
        read = tf.raw_ops.ReadVariableOp(resource=_text(name), dtype=tf.string)
    with ServerSession(server, graph, deadline) as session:
        text = session.run(read, what)
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def _text(name):
    return tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name=name)
