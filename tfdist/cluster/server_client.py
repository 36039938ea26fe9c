"""Functions on a server that any thread of this process may call.

TensorFlow's eager runtime is for one thread: a call looks into a vector of
remote functions, which the first call of another function in another thread
makes move (`EagerClusterFunctionLibraryRuntime::Run`; 1 of some 800 starts of
a worker crashed). So what heartbeats and other threads do on servers, they do
in sessions (`tfdist.cluster.sessions`), which reach the same resources by their
names, need nothing of that runtime, and give up when their time is over.
"""

import threading
import weakref

import tensorflow as tf

from tfdist.cluster import sessions
from tfdist.cluster import versions

# Seconds for a call. One that waits longer fails, and whoever calls tries
# again: heartbeats with the next beat, the main thread by its recovery.
SECONDS = 20.0
# After these a server still has the session, if it is in the same life.
_LASTING = (
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.UnavailableError,
)


class ServerClient:
    """One server, as the threads of this process talk to it.

    A server that was started again is talked to when the main thread has
    connected to it (`reconnected`), which puts back what it has lost. Only
    functions that need nothing of that are called before (`any_life`).

    Args:
      address: Its `host:port`.
      task: Its index among the servers.
      cluster: What it tells of its cluster, from `versions.checksum`; None for
        any.

    Attributes:
      life: The life that the main thread has connected to, a number that the
        server has drawn when it started; None before the first session.
    """

    def __init__(self, address, task, cluster=None):
        self.address = address
        self.task = task
        self.life = None
        self._cluster = cluster
        # Of this cluster, and not connected to yet.
        self._next_life = None
        self._functions = weakref.WeakSet()

    def function(self, build, signature, any_life=False):
        """Makes a function; in the main thread.

        Args:
          build: Callable that builds it on the server's device, of tensors;
            returns a list of tensors, which may be empty.
          signature: List of `tf.TensorSpec`, its arguments.
          any_life: Whether it is also called on a server that was started
            again and that the main thread has not connected to yet.

        Returns:
          A `ServerFunction`.
        """
        made = ServerFunction(self, build, signature, any_life)
        self._functions.add(made)
        return made

    def reconnected(self, address, life=None):
        """The main thread has connected to the server that is there now.

        Args:
          address: Where it is.
          life: Its incarnation; None for the one that it turns out to be in.
        """
        self.address, self.life = address, life

    def open_session(self, graph, deadline, any_life):
        """Opens a session with the server, in the life that is known or in any.

        Returns:
          The session, and the life.

        Raises:
          tf.errors.OpError: It is not there, or in another life.
        """
        address = self.address
        try:
            session = sessions.open_session(
                address, "ps", self.task, graph, deadline
            )
        except OSError as error:
            raise tf.errors.UnavailableError(
                None, None, f"Nobody listens at {address}: {error}"
            ) from error
        try:
            life = self._life_of(session)
            if life != (self.life or life):
                if not any_life:
                    raise tf.errors.AbortedError(
                        None,
                        None,
                        f"The server at {self.address} was started again, and "
                        "this process has not connected to it yet.",
                    )
                self._check_cluster(life, deadline)
            if self.life is None:
                # Not what the main thread has said in the meantime.
                self.life = life
        except BaseException:
            sessions.close(session, address)
            raise
        return session, life

    def _check_cluster(self, life, deadline):
        """Refuses a server of another cluster that has got the address."""
        if self._cluster is None or life == self._next_life:
            return
        seconds = deadline.milliseconds() / 1000
        told = versions.told_by(self.address, self.task, seconds)
        if told is None or told.get("workers") != self._cluster:
            raise tf.errors.UnavailableError(
                None,
                None,
                f"The server at {self.address} is one of another cluster, or "
                "not ready yet.",
            )
        self._next_life = life

    def _life_of(self, session):
        mine = f"/job:ps/replica:0/task:{self.task}/"
        for device in session.list_devices():
            if mine in device.name:
                return device.incarnation
        raise tf.errors.UnavailableError(
            None, None, f"Another task listens at {self.address}."
        )

    def close(self):
        """Frees what the server keeps for this process's functions."""
        for function in list(self._functions):
            function.close()


class ServerFunction:
    """A function on one server, in a session of its own; see `ServerClient`.

    Args:
      client: The `ServerClient`.
      build: See `ServerClient.function`.
      signature: The same.
      any_life: The same.

    Attributes:
      life: That of the server in the last call; None before.
    """

    def __init__(self, client, build, signature, any_life):
        self._client, self._any_life = client, any_life
        self.life = None
        device = f"/job:ps/replica:0/task:{client.task}/device:CPU:0"

        def built(*arguments):
            with tf.device(device):
                return build(*arguments) or [tf.constant(True)]

        traced = tf.function(
            built, input_signature=signature, autograph=False
        ).get_concrete_function()
        with tf.Graph().as_default() as self._graph, tf.device(device):
            self._feeds = [
                tf.compat.v1.placeholder(spec.dtype, spec.shape)
                for spec in signature
            ]
            self._fetches = traced(*self._feeds)
        self._session = self._address = None
        self._opening = threading.Lock()

    def __call__(self, *values):
        """Calls it.

        Args:
          *values: Its arguments, NumPy arrays or what becomes such.

        Returns:
          A list of NumPy arrays.

        Raises:
          tf.errors.OpError: It has failed, or not ended in time.
        """
        deadline = sessions.Deadline(SECONDS)
        feeds = dict(zip(self._feeds, values, strict=True))
        try:
            return self._run(feeds, deadline)
        except tf.errors.AbortedError:
            # The server was started again, or has ended all sessions.
            return self._run(feeds, deadline)

    def _run(self, feeds, deadline):
        session = self._opened(deadline)
        try:
            return sessions.run(session, self._fetches, deadline, feeds)
        except _LASTING:
            raise
        except tf.errors.OpError:
            self._forget(session)
            raise
        except RuntimeError as error:
            # Another thread has closed it.
            raise tf.errors.AbortedError(None, None, str(error)) from error

    def close(self):
        """Frees what the server keeps for it; a call opens it again."""
        self._forget(self._session)

    def _opened(self, deadline):
        with self._opening:
            moved = self._address != self._client.address
            if moved and self._session is not None:
                # The process ends after it: a daemon would be torn from it.
                threading.Thread(
                    target=sessions.close,
                    args=(self._session, self._address),
                ).start()
                self._session = None
            if self._session is None:
                self._address = self._client.address
                self._session, self.life = self._client.open_session(
                    self._graph, deadline, self._any_life
                )
            return self._session

    def _forget(self, session):
        with self._opening:
            if session is None or self._session is not session:
                return
            self._session, address = None, self._address
        sessions.close(session, address)
