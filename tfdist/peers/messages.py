"""The messages between workers, and the queue in which a worker gets them.

A message is a header and an encoded vector: the receiver subtracts from its
parameters what is decoded, times the scale in the header.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.compression import base

# Messages that an inbox holds, and bytes of them; those of one call of each
# worker may come on top (`put_if`).
CAPACITY = 64
CAPACITY_BYTES = 2**28
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


class Packed(NamedTuple):
    """Messages that travel together: four arrays cost less than many.

    Attributes:
      headers: `(k, 9 + num_workers)` int64, one row for each of k messages.
      sizes: `(k, 2)` int64, the elements of its values and of its data.
      values: The values of all, one after another.
      data: The data of all.
    """

    headers: object
    sizes: object
    values: object
    data: object


def pack(updates):
    """Returns the `Packed` of a list of `PeerUpdate`s."""
    headers, values, data = zip(*updates, strict=True)
    sizes = [[len(v), len(d)] for v, d in zip(values, data, strict=True)]
    return Packed(
        np.stack(headers),
        np.array(sizes, np.int64),
        # Without a copy of what may be the whole model.
        values[0] if len(values) == 1 else np.concatenate(values),
        data[0] if len(data) == 1 else np.concatenate(data),
    )


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

    def has_room(self, num_workers):
        """Builds whether `put_if` would put messages, a scalar bool.

        Args:
          num_workers: As of `put_if`.
        """
        return self.size() + TOGETHER * num_workers <= self.capacity

    def put_if(self, packed, condition, num_workers):
        """Builds an enqueueing of messages that does not wait.

        Args:
          packed: The tensors of a `Packed`: all its messages or none.
          condition: Scalar bool.
          num_workers: Number of workers: all may look at the same moment.

        Returns:
          Whether they were enqueued, a scalar bool.
        """
        headers, sizes, values, data = packed

        def put_next(k, value, byte):
            end, last = tf.unstack(tf.stack([value, byte]) + sizes[k])
            message = headers[k], values[value:end], data[byte:last]
            with tf.control_dependencies([self.put(message)]):
                return k + 1, end, last

        def put():
            number = tf.shape(headers)[0]
            done = tf.while_loop(
                lambda k, *_: k < number,
                put_next,
                (0, *tf.unstack(tf.zeros([2], tf.int64))),
                parallel_iterations=1,
            )
            with tf.control_dependencies(done):
                return tf.constant(True)

        return tf.cond(
            condition & self.has_room(num_workers),
            put,
            lambda: tf.constant(False),
        )
