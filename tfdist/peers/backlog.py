"""Messages that a receiver has not taken yet, in bounded memory."""

import collections
import threading

import numpy as np
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.compression import base
from tfdist.peers import messages

# What is held for a joiner at most, in vectors and in bytes.
_HELD_VECTORS = 16
_HELD_BYTES = 2**26


class Backlog:
    """The messages that wait for one receiver.

    Messages wait one by one, as long as all of them together have fewer bytes
    than the vector itself. Beyond that they are summed up in one vector, which
    then travels as it is: nothing is lost and nothing kept back, and memory
    and the bytes that are sent have a bound, however long the receiver takes.
    (Encoding the sum again would keep a residual back for each receiver, for
    bytes that matter only where a link is slow for long.)

    Args:
      codec: The `Codec` of the messages.
      size: Elements of the vector.
      dtype: Its `tf.DType`.
      holds: Whether messages wait one by one until `release`: before it is
        known which of them a joiner has already.
    """

    def __init__(self, codec, size, dtype, holds=False):
        self._codec = codec
        self._size = size
        self._dtype = dtype
        self._waiting = collections.deque()
        self._bytes = 0
        self._sum = None
        # The `PeerUpdate` whose header the sum will have; None without a sum.
        self._summed = None
        self._lock = threading.Lock()
        self._add = None
        self._holds = holds
        # Whether more is held than there is room for.
        self.is_full = False
        self.merged = 0

    def __len__(self):
        return len(self._waiting) + (self._summed is not None)

    @property
    def updates(self):
        """Number of updates that wait, int."""
        with self._lock:
            waiting = [*self._waiting]
            if self._summed is not None:
                waiting.append(self._summed)
            return sum(update.count for update in waiting)

    def put(self, update):
        """Adds an `PeerUpdate`."""
        with self._lock:
            if self._summed is not None:
                self._merge(update)
                return
            self._waiting.append(update)
            self._bytes += update.bytes
            most = self._size * self._dtype.size
            if self._holds:
                self.is_full = self._bytes > max(
                    _HELD_VECTORS * most, _HELD_BYTES
                )
            elif len(self._waiting) > 1 and self._bytes > most:
                while self._waiting:
                    self._merge(self._waiting.popleft())

    def release(self, seen):
        """Forgets what the receiver has already, and holds nothing more.

        Args:
          seen: Number of this worker's last update that it has.
        """
        with self._lock:
            self._holds = False
            kept = [u for u in self._waiting if u.header[messages.LAST] > seen]
            self._waiting = collections.deque(kept)
            self._bytes = sum(update.bytes for update in kept)

    def take_together(self):
        """Takes out what travels in one call, a list of `PeerUpdate`s.

        They are `messages.TOGETHER` at most, and have together no more bytes
        than the vector itself, unless it is a single one.
        """
        taken, size = [], 0
        while len(self) and len(taken) < messages.TOGETHER:
            size += self._waiting[0].bytes if self._waiting else 0
            if taken and size > self._size * self._dtype.size:
                break
            taken.append(self.take())
        return taken

    def take(self):
        """Takes out the next `PeerUpdate`; None if nothing waits."""
        with self._lock:
            if self._summed is not None:
                update, self._summed = self._summed, None
                values = np.array(self._sum.numpy())
                self._sum.assign(tf.zeros_like(self._sum))
                self._bytes = 0
                header = np.array(update.header)
                header[messages.SCALE] = np.float64(1.0).view(np.int64)
                header[messages.KIND] = base.DENSE
                return update._replace(
                    header=header, values=values, data=np.zeros([0], np.uint8)
                )
            if not self._waiting:
                return None
            update = self._waiting.popleft()
            self._bytes -= update.bytes
            return update

    def clear(self):
        """Forgets all that waits."""
        with self._lock:
            self._waiting.clear()
            self._bytes, self._summed = 0, None
            self._sum = self._add = None

    def _merge(self, update):
        if self._sum is None:
            self._make_sum()
        message = update.kind, update.values, update.data
        self._add(*map(tf.constant, message), tf.constant(update.scale))
        first = update if self._summed is None else self._summed
        header = np.array(update.header)
        header[messages.FIRST] = first.header[messages.FIRST]
        self._summed = update._replace(
            header=header, values=np.zeros([0]), data=np.zeros([0], np.uint8)
        )
        self.merged += 1

    def _make_sum(self):
        self._sum = private_tensorflow.hidden_variable(
            tf.zeros([self._size], self._dtype)
        )
        codec, total = self._codec, self._sum

        def add(kind, values, data, scale):
            message = base.Message(kind, values, data)
            codec.decode_into(total, message, tf.cast(scale, total.dtype))

        self._add = tf.function(
            add,
            input_signature=[
                *(
                    tf.TensorSpec([None] * rank, dtype)
                    for rank, dtype in zip(
                        (0, 1, 1),
                        base.message_dtypes(self._dtype),
                        strict=True,
                    )
                ),
                tf.TensorSpec([], tf.float64),
            ],
            autograph=False,
        )


class UnmergedBacklog(Backlog):
    """A `Backlog` of messages that no sum can replace, and that are few."""

    def put(self, update):
        """Adds an `PeerUpdate`."""
        with self._lock:
            self._waiting.append(update)
            self._bytes += update.bytes
