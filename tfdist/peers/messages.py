"""The messages between workers, and the queue in which a worker gets them.

A message is a header, a scale, and an encoded vector: the receiver subtracts
`scale` times what is decoded from its parameters.
"""

from typing import NamedTuple

import tensorflow as tf

from tfdist.compression import base

# Messages that an inbox holds; one per worker may come on top (`put_if`).
CAPACITY = 64

# Places in a header, int64; what follows is the sender's count of the updates
# that it had applied of each worker, `(num_workers,)`.
SENDER, INCARNATION, FIRST, LAST, STOP, RATE = range(6)
SEEN = 6


class PeerUpdate(NamedTuple):
    """One message outside of graphs, arrays; see `base.Message`.

    Attributes:
      header: `(6 + num_workers,)` int64. FIRST and LAST are the numbers of the
        updates in it, from 1; 0 if there are none. STOP is the number of the
        call of `fit` that is to stop, or 0; RATE the bits of the sender's
        learning rate as a float64.
      scale: Scalar float64.
      kind: Scalar int32.
      values: `[m]`, of the vector's dtype.
      data: `[b]` uint8.
    """

    header: object
    scale: object
    kind: object
    values: object
    data: object

    @property
    def count(self):
        """Number of updates, int."""
        if not self.header[LAST]:
            return 0
        return int(self.header[LAST] - self.header[FIRST]) + 1

    @property
    def bytes(self):
        """Bytes of all tensors, int."""
        return sum(array.nbytes for array in self)


def dtypes(dtype):
    """The dtypes of a message of a vector of `dtype`, a list."""
    return [tf.int64, tf.float64, *base.message_dtypes(dtype)]


def header_length(num_workers):
    """Elements of a header."""
    return SEEN + num_workers


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

    def size(self):
        """Builds the number of messages in it, int32."""
        return tf.raw_ops.QueueSizeV2(handle=self.handle())

    def put(self, tensors):
        """Builds an enqueueing, which waits while it is full."""
        return tf.raw_ops.QueueEnqueueV2(
            handle=self.handle(), components=list(tensors)
        )

    def take(self):
        """Builds a dequeueing: the tensors of an `PeerUpdate`."""
        return PeerUpdate(
            *tf.raw_ops.QueueDequeueV2(
                handle=self.handle(), component_types=self.dtypes
            )
        )

    def close(self):
        """Builds its end: whoever waits for messages gets an error."""
        return tf.raw_ops.QueueCloseV2(
            handle=self.handle(), cancel_pending_enqueues=True
        )

    def put_if(self, tensors, condition, room):
        """Builds an enqueueing that does not wait.

        Args:
          tensors: Of an `PeerUpdate`.
          condition: Scalar bool.
          room: Places that have to be free: all senders may look at the same
            moment.

        Returns:
          Whether it was enqueued, a scalar bool.
        """

        def put():
            with tf.control_dependencies([self.put(tensors)]):
                return tf.constant(True)

        return tf.cond(
            condition & (self.size() + room <= self.capacity),
            put,
            lambda: tf.constant(False),
        )
