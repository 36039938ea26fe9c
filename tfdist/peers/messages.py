"""The messages between workers, and the queue in which a worker gets them.

A message is a header and an encoded vector: the receiver subtracts from its
parameters what is decoded, times the scale in the header.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.compression import base

# Messages that an inbox holds; those of one call of each worker may come on
# top (`put_if`).
CAPACITY = 64
# Messages that one call brings at most.
TOGETHER = 8

# Places in a header, int64; what follows is the sender's count of the updates
# that it had applied of each worker, `(num_workers,)`.
SENDER, INCARNATION, FIRST, LAST, STOP, RATE, SCALE, KIND, SUM = range(9)
SEEN = 9


class PeerUpdate(NamedTuple):
    """One message outside of graphs, arrays; see `base.Message`.

    Attributes:
      header: `(9 + num_workers,)` int64. FIRST and LAST are the numbers of the
        updates in it, from 1; 0 if there are none. STOP is the number of the
        call of `fit` that is to stop, or 0; RATE and SCALE the bits of the
        sender's learning rate and of the scale as float64; KIND that of the
        encoded vector; SUM the checksum of all of the sender's updates until
        then, see `epoch_check`.
      values: `[m]`, of the vector's dtype.
      data: `[b]` uint8.
    """

    header: object
    values: object
    data: object

    @property
    def kind(self):
        """Kind of the encoded vector, int32."""
        return np.int32(self.header[KIND])

    @property
    def scale(self):
        """The scale, float64."""
        return self.header[SCALE].view(np.float64)

    @property
    def first(self):
        """Number of the first update, int."""
        return int(self.header[FIRST])

    @property
    def last(self):
        """Number of the last update, int."""
        return int(self.header[LAST])

    @property
    def count(self):
        """Number of updates, int."""
        return self.last - self.first + 1 if self.last else 0

    @property
    def bytes(self):
        """Bytes of all tensors, int."""
        return sum(array.nbytes for array in self)


def dtypes(dtype):
    """The dtypes of a message of a vector of `dtype`, a list."""
    _, *vectors = base.message_dtypes(dtype)
    return [tf.int64, *vectors]


def header_length(num_workers):
    """Elements of a header."""
    return SEEN + num_workers


def build_bytes(*tensors):
    """Builds the bytes of all tensors, a scalar int64."""
    return sum(tf.size(x, tf.int64) * x.dtype.size for x in tensors)


class Queue:
    """Builds the operations of a queue that has a name on a server.

    Args:
      name: Unique on the server.
      dtype: Of the vectors.
      capacity: Messages.
    """

    def __init__(self, name, dtype, capacity):
        self._name = name
        self.dtypes = dtypes(dtype)
        self.capacity = capacity

    def handle(self):
        """Builds its handle; the first one makes the queue."""
        return tf.raw_ops.FIFOQueueV2(
            component_types=self.dtypes,
            capacity=self.capacity,
            shared_name=self._name,
        )

    def size(self, handle=None):
        """Builds the number of messages in it, int32; see `take`."""
        return tf.raw_ops.QueueSizeV2(
            handle=self.handle() if handle is None else handle
        )

    def put(self, tensors):
        """Builds an enqueueing, which waits while it is full."""
        return tf.raw_ops.QueueEnqueueV2(
            handle=self.handle(), components=list(tensors)
        )

    def take(self, handle=None):
        """Builds a dequeueing: the tensors of an `PeerUpdate`.

        Args:
          handle: The handle, if it is there already.
        """
        return PeerUpdate(
            *tf.raw_ops.QueueDequeueV2(
                handle=self.handle() if handle is None else handle,
                component_types=self.dtypes,
            )
        )

    def close(self):
        """Builds its end: whoever waits for messages gets an error."""
        return tf.raw_ops.QueueCloseV2(
            handle=self.handle(), cancel_pending_enqueues=True
        )

    def put_if(self, updates, condition, num_workers):
        """Builds an enqueueing that does not wait.

        Args:
          updates: List of the tensors of `PeerUpdate`s: all or none.
          condition: Scalar bool.
          num_workers: Number of workers: all may look at the same moment.

        Returns:
          Whether they were enqueued, a scalar bool.
        """
        room = TOGETHER * num_workers

        def put():
            done = []
            for update in updates:
                with tf.control_dependencies(done):
                    done = [self.put(update)]
            with tf.control_dependencies(done):
                return tf.constant(True)

        return tf.cond(
            condition & (self.size() + room <= self.capacity),
            put,
            lambda: tf.constant(False),
        )
