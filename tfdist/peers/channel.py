"""One flat vector of a lane: what goes out of it, and what comes in."""

import weakref

import numpy as np
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.compression import base
from tfdist.peers import messages
from tfdist.peers import transport as transport_lib

# Columns of what is counted for each other worker: the number of the last
# update that was applied; updates applied, and missed where this worker had
# been given up; messages, those that came twice, those of a process that has
# been replaced; bytes; and the sum of the staleness of messages.
SEEN, APPLIED, MISSED, MESSAGES, DUPLICATES, FOREIGN, BYTES, STALE = range(8)
COUNTS = 8


class Channel:
    """Encodes updates, applies those of others, and counts both.

    Args:
      engine: The `PeerEngine`.
      name: The same on all workers, unique on each.
      group: The `flat.FlatGroup`.
      codec: The `Codec`; None sends vectors as they are.
      state: Dict of the codec's state: name -> variable.
      rate: The variable of the optimizer's learning rate, or None: it follows
        that of the chief, worker 0.
    """

    def __init__(self, engine, name, group, codec, state, rate=None):
        self.name = name
        self.group = group
        self._codec = codec
        self._decoder = codec or engine.dense
        self._codec_state = state
        self._rate = rate
        self._roster = engine.roster
        self._known = engine.known
        self._told = engine.told
        hidden = private_tensorflow.hidden_variable
        # The parameters, while a step is changing them.
        self._flat = hidden(tf.zeros([group.size], group.dtype))
        # A function of its own: else TensorFlow takes the shapes that a branch
        # of decoding expects for those of all messages, and counts wrong bytes.
        self._decode = tf.function(
            self._build_decode,
            input_signature=[
                tf.TensorSpec([], tf.int32),
                tf.TensorSpec([None], group.dtype),
                tf.TensorSpec([None], tf.uint8),
                tf.TensorSpec([], tf.float64),
            ],
            autograph=False,
            experimental_attributes=private_tensorflow.STAYS_A_FUNCTION,
        )
        self._sent = hidden(tf.zeros([], tf.int64))
        workers = self._roster.num_workers
        self._frame_bytes = 8 * messages.header_length(workers) + 8
        self._counts = hidden(tf.zeros([workers, COUNTS], tf.int64))
        self.transport = transport_lib.Transport(
            self._roster,
            name,
            self._decoder,
            group.size,
            group.dtype,
            engine.tolerance,
            engine.device,
        )
        # At the end of the process `transport.end_all` does.
        weakref.finalize(self, self.transport.close).atexit = False

    # Within a step.

    def exchange(self, before, after, rate):
        """Builds an update of this worker's, and takes those of others.

        Args:
          before: Parameters before the step, `[size]`.
          after: Those that Keras's optimizer has made of them.
          rate: Its learning rate, scalar float64.

        Returns:
          The parameters with all that has come, `[size]`; whether they are
          others than `after`; bytes sent to each other worker, int64; and of
          what came updates, bytes, and the mean staleness, int64.
        """
        # A step that accumulates, or is skipped, is no update.
        changed = tf.reduce_any(tf.not_equal(before, after))
        if self._codec is None:
            self._flat.assign(after, read_value=False)
        else:
            self._flat.assign(before, read_value=False)
        sent = tf.cond(
            changed,
            lambda: self._send(before, after, rate),
            lambda: tf.zeros([], tf.int64),
        )
        count, size, staleness = self.receive()
        other = count > 0
        if self._codec is not None:
            other = other | changed
        return self._flat.read_value(), other, sent, count, size, staleness

    def _send(self, before, after, rate):
        update = before - after
        if self._codec is None:
            scale = tf.ones([], tf.float64)
            message = base.dense(update)
        else:
            # Without the rate, which may be another one when a residual goes.
            scale = tf.where(rate > 0.0, rate, tf.ones_like(rate))
            update = update / tf.cast(scale, update.dtype)
            state = {k: v.read_value() for k, v in self._codec_state.items()}
            message, state = self._codec.encode(update, state)
            for key, value in state.items():
                self._codec_state[key].assign(value, read_value=False)
            self._decode(*message, scale)
        if not self._roster.others:
            return tf.zeros([], tf.int64)
        return tf.cond(
            base.is_nothing(message),
            lambda: tf.zeros([], tf.int64),
            lambda: self._enqueue(scale, message, rate),
        )

    def _enqueue(self, scale, message, rate):
        number = tf.convert_to_tensor(self._sent.assign_add(1))
        roster = self._roster
        fixed = np.zeros([messages.SEEN], np.int64)
        fixed[messages.SENDER] = roster.worker_id
        fixed[messages.INCARNATION] = roster.incarnation
        numbered = np.zeros([messages.SEEN], np.int64)
        numbered[[messages.FIRST, messages.LAST]] = 1
        bits = np.zeros([messages.SEEN], np.int64)
        bits[messages.RATE] = 1
        bits = bits * tf.bitcast(rate, tf.int64)
        seen = self._counts.read_value()[:, SEEN]
        header = tf.concat([fixed + numbered * number + bits, seen], 0)
        put = self.transport.outbox.put([header, scale, *message])
        with tf.control_dependencies([put]):
            return self._decoder.bytes(message) + self._frame_bytes

    def receive(self):
        """Builds the application of all messages that are in the inbox.

        To the vector of `begin`, or of a step.

        Returns:
          Updates, bytes, and the mean staleness of messages, int64.
        """
        zeros = [tf.zeros([], tf.int64)] * 4
        if not self._roster.others:
            return zeros[:3]
        inbox = self.transport.inbox
        waiting = inbox.size()
        totals = tf.while_loop(
            lambda k, *totals: k < waiting,
            lambda k, *totals: (k + 1, *self._apply(inbox.take(), *totals)),
            [0, *zeros],
            parallel_iterations=1,
        )
        _, count, size, staleness, fresh = totals
        return count, size, staleness // tf.maximum(fresh, 1)

    def _apply(self, update, count, size, staleness, fresh_ones):
        length = messages.header_length(self._roster.num_workers)
        header = tf.ensure_shape(update.header, [length])
        scale = tf.ensure_shape(update.scale, [])
        message = base.Message(update.kind, update.values, update.data)
        sender, last = header[messages.SENDER], header[messages.LAST]
        known = tf.gather(self._known.read_value(), sender)
        is_foreign = known != header[messages.INCARNATION]
        counts = self._counts.read_value()
        seen = counts[sender, SEEN]
        is_numbered = ~is_foreign & (last > 0)
        is_fresh = is_numbered & (last > seen)
        self._told.assign(
            tf.where(
                is_foreign,
                self._told.read_value(),
                tf.maximum(self._told.read_value(), header[messages.STOP]),
            ),
            read_value=False,
        )

        def decode():
            self._decode(*message, scale)
            if self._rate is not None:
                chiefs = tf.bitcast(header[messages.RATE], tf.float64)
                chiefs = tf.cast(chiefs, self._rate.dtype)
                own = self._rate.read_value()
                self._rate.assign(tf.where(sender == 0, chiefs, own))
            return tf.constant(True)

        done = tf.cond(is_fresh, decode, lambda: tf.constant(False))
        new = tf.cast(is_fresh, tf.int64)
        updates = last - header[messages.FIRST] + 1
        missed = header[messages.FIRST] - 1 - seen
        came = self._decoder.bytes(message) + self._frame_bytes
        # The sender had applied so many of this worker's updates.
        theirs = header[messages.SEEN + self._roster.worker_id]
        stale = self._sent.read_value() - theirs
        row = tf.stack(
            [
                new * (last - seen),
                new * updates,
                new * missed,
                tf.ones([], tf.int64),
                tf.cast(is_numbered & ~is_fresh, tf.int64),
                tf.cast(is_foreign, tf.int64),
                came,
                new * stale,
            ]
        )
        with tf.control_dependencies([done]):
            self._counts.scatter_nd_add(sender[None, None], row[None])
        return (
            count + new * updates,
            size + came,
            staleness + new * stale,
            fresh_ones + new,
        )

    def _build_decode(self, kind, values, data, scale):
        """Builds the subtraction of a message from the parameters."""
        self._decoder.decode_into(
            self._flat,
            base.Message(kind, values, data),
            -tf.cast(scale, self.group.dtype),
        )

    # Between steps.

    def begin(self, vector):
        """Builds: what comes is added to this vector, `[size]`."""
        self._flat.assign(vector, read_value=False)

    def vector(self):
        """Builds the vector with what has come."""
        return self._flat.read_value()

    @property
    def sent(self):
        """Number of updates that this worker has sent, int."""
        return int(self._sent.numpy())

    @property
    def counts(self):
        """The counts, an int64 array `(num_workers, COUNTS)`."""
        return self._counts.numpy()

    @property
    def is_flushed(self):
        """Whether all live workers have taken what was sent."""
        return self.transport.is_flushed(self.sent)
