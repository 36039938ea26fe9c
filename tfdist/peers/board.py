"""Texts that a worker leaves on its own server for others to read."""

import contextlib

import tensorflow as tf

from tfdist.cluster import sessions

# Seconds that a server has for one answer.
SECONDS = 3.0
# Longer texts are read in parts: no message of TensorFlow's has 2 GiB.
_PART_BYTES = 2**28


def _handle(name):
    return tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name=name)


class Board:
    """The texts of this worker.

    Args:
      device: Of this worker.
    """

    def __init__(self, device):
        self._device = device
        self._write = {}

    def post(self, name, text):
        """Leaves a text; the one of the same name before is gone.

        Args:
          name: The same on all workers.
          text: Bytes.
        """
        if name not in self._write:

            @tf.function(
                input_signature=[tf.TensorSpec([], tf.string)], autograph=False
            )
            def write(text):
                with tf.device(self._device):
                    tf.raw_ops.AssignVariableOp(
                        resource=_handle(name), value=text
                    )

            self._write[name] = write
        self._write[name](tf.constant(text))


def build_membership(name):
    """Builds what a worker has left by `MembershipNote`, on the scope's device.

    Args:
      name: As of `MembershipNote`.

    Returns:
      An int64 tensor `(1 + num_workers,)`.
    """
    return tf.raw_ops.ReadVariableOp(resource=_membership(name), dtype=tf.int64)


def _membership(name):
    return tf.raw_ops.VarHandleOp(
        dtype=tf.int64, shape=None, shared_name=f"{name}/membership"
    )


class MembershipNote:
    """A note for those that send to this worker: it, and whom it has given up.

    Args:
      name: The same on all workers.
      device: Of this worker.
    """

    def __init__(self, name, device):
        @tf.function(
            input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False
        )
        def write(numbers):
            with tf.device(device):
                tf.raw_ops.AssignVariableOp(
                    resource=_membership(name), value=numbers
                )

        self._write = write

    def post(self, incarnation, lost):
        """Leaves it.

        Args:
          incarnation: Of this process.
          lost: Whether each worker is given up, a list of bool.
        """
        self._write(tf.constant([incarnation, *map(int, lost)], tf.int64))


def _requests(name):
    return tf.raw_ops.VarHandleOp(
        dtype=tf.int64, shape=None, shared_name=f"{name}/requests"
    )


class RequestBox:
    """Requests of joiners to this worker, which they write here.

    Args:
      name: The same on all workers.
      device: Of this worker.
      num_workers: Number of all workers.
    """

    def __init__(self, name, device, num_workers):
        with tf.init_scope(), tf.device(device):
            self._handle = _requests(name)
            tf.raw_ops.AssignVariableOp(
                resource=self._handle,
                value=tf.zeros([num_workers, 2], tf.int64),
            )

    def read(self):
        """Returns, for each worker, its incarnation and a number; a list."""
        value = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64)
        return value.numpy().tolist()


class BoardReader:
    """Reads the texts of another worker.

    Args:
      address: Its `host:port`.
      job: Its job.
      task: Its number in the job.
    """

    def __init__(self, address, job, task):
        self._place = address, job, task
        self._session = None
        self._graph = tf.Graph()
        self._reads = {}

    def read(self, name, seconds=SECONDS):
        """Returns a text, bytes; None where there is none.

        Args:
          name: As of `Board.post`.
          seconds: For the answer; of a long text, for each part of it.

        Raises:
          tf.errors.OpError, OSError: The server does not answer.
        """
        parts = []
        while not parts or len(parts[-1]) == _PART_BYTES:
            part = self._run(self._build(name, len(parts)), seconds)
            if part is None:
                return None
            parts.append(part)
        return b"".join(parts)

    def request(self, name, worker, numbers, seconds=SECONDS):
        """Writes into the `RequestBox` of that worker, if there is one.

        Args:
          name: As of `RequestBox`.
          worker: Number of the worker that asks.
          numbers: Two ints.
          seconds: For the answer.

        Returns:
          Whether it is there.

        Raises:
          tf.errors.OpError, OSError: The server does not answer.
        """
        key = name, worker, *numbers
        if key not in self._reads:
            with self._scope():
                self._reads[key] = tf.raw_ops.ResourceScatterUpdate(
                    resource=_requests(name),
                    indices=[worker],
                    updates=tf.constant([numbers], tf.int64),
                )
        return self._run([self._reads[key]], seconds) is not None

    def _run(self, fetch, seconds):
        deadline = sessions.Deadline(seconds)
        try:
            if self._session is None:
                self._session = sessions.open_session(
                    *self._place, self._graph, deadline
                )
            return sessions.run(self._session, fetch, deadline)
        except (
            tf.errors.AbortedError,
            tf.errors.FailedPreconditionError,
            tf.errors.NotFoundError,
        ):
            # Nothing of that name; or the server was started again.
            self.close()
            return None
        except (tf.errors.OpError, OSError):
            self.close()
            raise

    def _build(self, name, part):
        if (name, part) not in self._reads:
            with self._scope():
                text = tf.raw_ops.ReadVariableOp(
                    resource=_handle(name), dtype=tf.string
                )
                self._reads[name, part] = tf.strings.substr(
                    text, tf.constant(part * _PART_BYTES, tf.int64), _PART_BYTES
                )
        return self._reads[name, part]

    @contextlib.contextmanager
    def _scope(self):
        """Scope in which operations of that worker are built."""
        _, job, task = self._place
        with (
            self._graph.as_default(),
            tf.device(f"/job:{job}/replica:0/task:{task}/device:CPU:0"),
        ):
            yield

    def close(self):
        """Ends the session."""
        session, self._session = self._session, None
        if session is not None:
            sessions.close(session, self._place[0])
