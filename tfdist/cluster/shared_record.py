"""A record on the first server that all tasks read and change."""

import json
import uuid

import tensorflow as tf

from tfdist.cluster import resource_values

_NOTHING = ""


class SharedRecord:
    """A dict that is replaced as a whole, by whoever has read the newest one.

    Whoever constructs it with the same name has the same record. It is there
    as long as the server's process.

    Args:
      name: Of the record.
      device: The first server's.
      here: This process's device.
    """

    def __init__(self, name, device, here):
        self._name = name
        self._device = device
        self._here = here
        self._read = tf.function(
            self._build_read, input_signature=[], autograph=False
        )
        self._replace = tf.function(
            self._build_replace,
            input_signature=[tf.TensorSpec([2], tf.string)] * 2,
            autograph=False,
        )

    def read(self):
        """Returns the record, a dict; empty before there is one."""
        return self._look()[1]

    def change(self, function):
        """Changes the record; again, if another task was faster.

        Args:
          function: Callable of the record, a dict of its own, which it may
            change, and the time by the server's clock in seconds.

        Returns:
          What the last call of `function` has returned.

        Raises:
          tf.errors.OpError: The server is gone.
        """
        while True:
            version, record, now = self._look()
            before = json.dumps(record)
            answer = function(record, now)
            after = json.dumps(record)
            if after == before:
                return answer
            new = [str(uuid.uuid4()), after]
            if bool(self._replace([version, before], new)):
                return answer

    def _look(self):
        texts, now = self._read()
        version, text = (text.decode() for text in texts.numpy())
        return version, json.loads(text) if text else {}, float(now)

    def _handle(self):
        return tf.raw_ops.VarHandleOp(
            dtype=tf.string, shape=[2], shared_name=self._name
        )

    def _build_read(self):
        with tf.device(self._device):
            value = tf.identity(_value(self._handle()))
            now = tf.timestamp()
        # No eager tensor may live on a server.
        with tf.device(self._here):
            return tf.identity(value), tf.identity(now)

    def _build_replace(self, old, new):
        """Builds: `new` becomes the value if that is of the version of `old`.

        Args:
          old: String tensor `(2,)`, a version and a text.
          new: The same.

        Returns:
          A scalar bool, whether it was.
        """
        with tf.device(self._device):
            # One handle: TensorFlow keeps the order of what has it in common.
            handle = self._handle()
            mutex = tf.raw_ops.MutexV2(shared_name=f"{self._name}/lock")
            lock = tf.raw_ops.MutexLock(mutex=mutex)
            with tf.control_dependencies([lock]):
                value = tf.identity(_value(handle))
                is_newest = tf.equal(value[0], old[0])
                written = tf.raw_ops.AssignVariableOp(
                    resource=handle, value=tf.where(is_newest, new, value)
                )
            with tf.control_dependencies([written]):
                tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        with tf.device(self._here):
            return tf.identity(is_newest)


def _value(handle):
    """Builds the value of a record's variable, `(2,)` strings."""
    return resource_values.build_read_or(handle, [_NOTHING, _NOTHING])
