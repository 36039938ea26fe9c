"""One flat vector of a lane: what goes out of it, and what comes in."""

import weakref

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.compression import base
from tfdist.peers import messages
from tfdist.peers import transport as transport_lib

# Columns of what is counted for each other worker: the number of the last
# update that was applied; updates applied, and missed where this worker had
# been given up; messages, those that came twice, those of a process that has
# been replaced; bytes; the sum of the staleness of messages; and messages
# without an update.
COUNTS = 9
(
    SEEN,
    APPLIED,
    MISSED,
    MESSAGES,
    DUPLICATES,
    FOREIGN,
    BYTES,
    STALE,
    EMPTY,
) = range(COUNTS)

# In the place of the bits of a rate: the chief has sent none.
_NO_RATE = -1


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
        # Updates of others that this worker began with, as it has joined.
        seen = engine.seen_at_join.get(name, [0] * workers)
        self.fetched = [*seen]
        # By joiner: this worker's updates before it came.
        self.before = {}
        # By joiner: the updates of its earlier processes that are here.
        self.earlier = [0] * workers
        counts = [[number, *[0] * (COUNTS - 1)] for number in seen]
        self._counts = hidden(tf.constant(counts, tf.int64))
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
          others than `after`; bytes sent to all others, int64; and of what
          came updates, bytes, and the mean staleness, int64.
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
        start = tf.stack(
            [
                tf.constant(roster.worker_id, tf.int64),
                tf.constant(roster.incarnation, tf.int64),
                number,
                number,
                tf.zeros([], tf.int64),
                tf.bitcast(rate, tf.int64),
                tf.bitcast(scale, tf.int64),
                tf.cast(message.kind, tf.int64),
            ]
        )
        seen = self._counts.read_value()[:, SEEN]
        header = tf.concat([start, seen], 0)
        put = self.transport.outbox.put([header, message.values, message.data])
        with tf.control_dependencies([put]):
            size = messages.build_bytes(header, *message[1:])
            return size * len(roster.others)

    def receive(self):
        """Builds the application of all messages that are in the inbox.

        To the vector of `begin`, or of a step.

        Returns:
          Updates, bytes, and the mean staleness of messages, int64.
        """
        if not self._roster.others:
            return [tf.zeros([], tf.int64)] * 3
        inbox = self.transport.inbox
        waiting = inbox.size()
        before = self._counts.read_value()
        # Read here, and not for each message.
        mine = self._known.read_value(), self._sent.read_value()
        no_rate = tf.constant(_NO_RATE, tf.int64)
        start = 0, before, self._told.read_value(), no_rate
        # What is counted is written once, not for each message.
        _, counts, told, rate = tf.while_loop(
            lambda k, *found: k < waiting,
            lambda k, *found: (
                k + 1,
                *self._apply(inbox.take(), *mine, *found),
            ),
            start,
            parallel_iterations=1,
        )
        self._counts.assign(counts, read_value=False)
        self._told.assign(told, read_value=False)
        if self._rate is not None:
            own = self._rate.read_value()
            chiefs = tf.cast(tf.bitcast(rate, tf.float64), own.dtype)
            self._rate.assign(
                tf.where(tf.equal(rate, _NO_RATE), own, chiefs),
                read_value=False,
            )
        new = tf.unstack(tf.reduce_sum(counts - before, 0))
        fresh = new[MESSAGES] - new[DUPLICATES] - new[FOREIGN] - new[EMPTY]
        return (
            new[APPLIED],
            new[BYTES],
            new[STALE] // tf.maximum(fresh, 1),
        )

    def _apply(self, update, known, sent, counts, told, rate):
        length = messages.header_length(self._roster.num_workers)
        header = tf.unstack(tf.ensure_shape(update.header, [length]))
        sender, first, last = (
            header[place]
            for place in (messages.SENDER, messages.FIRST, messages.LAST)
        )
        scale = tf.bitcast(header[messages.SCALE], tf.float64)
        kind = tf.cast(header[messages.KIND], tf.int32)
        is_foreign = tf.not_equal(
            tf.gather(known, sender), header[messages.INCARNATION]
        )
        seen = tf.gather(counts[:, SEEN], sender)
        is_known = tf.logical_not(is_foreign)
        is_numbered = is_known & (last > 0)
        is_fresh = is_numbered & (last > seen)
        tf.cond(
            is_fresh,
            lambda: self._decode(kind, update.values, update.data, scale),
            lambda: None,
        )
        foreign, numbered, new = (
            tf.cast(x, tf.int64) for x in (is_foreign, is_numbered, is_fresh)
        )
        size = messages.build_bytes(*update)
        row = [
            new * (last - seen),
            new * (last - first + 1),
            new * (first - 1 - seen),
            tf.ones([], tf.int64),
            numbered - new,
            foreign,
            size,
            # The sender had applied so many of this worker's updates.
            new * (sent - header[messages.SEEN + self._roster.worker_id]),
            1 - foreign - numbered,
        ]
        counts = tf.tensor_scatter_nd_add(
            counts, sender[None, None], tf.stack(row)[None]
        )
        stop = tf.where(is_foreign, told, header[messages.STOP])
        if self._rate is not None:
            is_chiefs = is_fresh & tf.equal(sender, 0)
            rate = tf.where(is_chiefs, header[messages.RATE], rate)
        return counts, tf.maximum(told, stop), rate

    def _build_decode(self, kind, values, data, scale):
        """Builds the subtraction of a message from the parameters."""
        self._decoder.decode_into(
            self._flat,
            base.Message(kind, values, data),
            -tf.cast(scale, self.group.dtype),
        )

    # Between steps.

    def admit(self, worker):
        """Numbers of a worker begin again: another process joins.

        Args:
          worker: Its number.

        Returns:
          Number of this worker's last update before it came, int.
        """
        self.before[worker] = before = self.sent
        counts = self.counts
        self.earlier[worker] += int(counts[worker, APPLIED])
        self.earlier[worker] += self.fetched[worker]
        self.fetched[worker] = 0
        counts[worker] = 0
        self._counts.assign(counts)
        self.transport.admit(worker, before)
        return before

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

    def came_from(self, worker):
        """Number of messages of another worker that have come, int."""
        return int(self.counts[worker, MESSAGES])

    @property
    def counts(self):
        """The counts, an int64 array `(num_workers, COUNTS)`."""
        return self._counts.numpy()

    @property
    def is_flushed(self):
        """Whether all live workers have taken what was sent."""
        return self.transport.is_flushed(self.sent)
