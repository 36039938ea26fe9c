"""A directory in which a worker's graph has a server write and read snapshots.

Where snapshots of several servers belong together, one worker says when all of
them write, and what. The server's process makes the directory, tells its name
through a variable, and removes it when training is over; TensorFlow's own
operations write and read the files, on the server.
"""

import os
import pathlib
import shutil

from absl import logging
import tensorflow as tf

from tfdist.cluster import resource_values

_OFFER = "tfdist/snapshot_slots"


class SnapshotSlots:
    """The directory of one server, in its process.

    It takes the place of `Snapshots`, and has its methods.

    Args:
      directory: For the snapshots of all servers of the cluster; each makes a
        directory of its own in it.
      device: The server's device.
      task: Number of the server.
      num_servers: How many there are.
      every: Seconds between two snapshots.

    Attributes:
      directory: That of this server.
    """

    def __init__(self, directory, device, *, task, num_servers, every):
        name = f"ps-{task}-of-{num_servers}"
        self.directory = pathlib.Path(directory).absolute() / name
        self._device = device
        self._name = f"/job:ps/task:{task}"
        self._every = every

    def restore(self):
        """Offers the directory, before anybody else talks to the server."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            logging.error(
                "%s cannot write snapshots to %s, and goes on without: %s",
                self._name,
                self.directory,
                error,
            )
            return
        with tf.device(self._device):
            tf.raw_ops.AssignVariableOp(
                resource=_handle(),
                value=[str(self.directory), repr(float(self._every))],
            )

    def start(self):
        """Nothing: a worker says when to write."""

    def write(self):
        """Nothing: what is there is the last state of all servers."""

    def finish(self):
        """Training is over: snapshots are removed."""
        shutil.rmtree(self.directory, ignore_errors=True)


def build_offer():
    """Builds, in the scope's device: what the server offers.

    Returns:
      A string tensor `(2,)`: the directory, empty if there is none, and the
      seconds between two snapshots.
    """
    return resource_values.build_read_or(_handle(), ["", "0"])


def build_path(name):
    """Builds, in the scope's device: the path of a file in the directory.

    Args:
      name: Of the file, a scalar string tensor.
    """
    directory = tf.raw_ops.ReadVariableOp(resource=_handle(), dtype=tf.string)
    return tf.strings.join(
        [tf.reshape(directory, [2])[0], name], separator=os.sep
    )


def _handle():
    return tf.raw_ops.VarHandleOp(
        dtype=tf.string, shape=[2], shared_name=_OFFER
    )
