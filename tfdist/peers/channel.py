"""One flat vector of a lane: what goes out of it, and what comes in."""

import weakref

import numpy as np
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.compression import base
from tfdist.peers import account
from tfdist.peers import checksums
from tfdist.peers import messages
from tfdist.peers import transport as transport_lib


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

    Attributes:
      account: The `Account`.
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
        self._device = engine.device
        hidden = private_tensorflow.hidden_variable
        # The parameters, while a step is changing them.
        self._flat = hidden(tf.zeros([group.size], group.dtype))
        # Of the last step.
        self._last_rate = hidden(tf.constant(np.nan, tf.float64))
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
        # Number of this worker's last update, and the checksum of all.
        self._own = hidden(tf.zeros([2], tf.int64))
        workers = self._roster.num_workers
        self._signs = checksums.signs(group.size, group.dtype)
        # Of a snapshot, see `PeerEngine`.
        nothing = [0] * workers
        seen, sums, earlier = engine.seen_at_join.get(name, [nothing] * 3)
        counts = np.zeros([workers, account.COLUMNS], np.int64)
        counts[:, account.SEEN], counts[:, account.SUM] = seen, sums
        self._counts = hidden(tf.constant(counts))
        self.account = account.Account(
            self._own, self._counts, [*seen], {}, [*earlier]
        )
        # Messages that were taken out of the inbox, see `take_all`.
        self._kept = messages.Queue(f"{name}/kept", group.dtype, 2**30)
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
          others than `after`; bytes sent to those that are not lost, int64;
          and of what came updates, bytes, and the mean staleness, int64.
        """
        # A step that accumulates, or is skipped, is no update.
        changed = tf.reduce_any(tf.not_equal(before, after))
        if self._codec is None:
            self._flat.assign(after, read_value=False)
        else:
            self._flat.assign(before, read_value=False)
        is_news = self._is_news(rate)
        sent = tf.cond(
            changed,
            lambda: self._send(before, after, rate, is_news),
            lambda: self._enqueue(
                tf.ones([], tf.float64),
                base.nothing(self.group.dtype),
                rate,
                before,
                is_news,
            ),
        )
        count, size, staleness = self.receive()
        other = count > 0
        if self._codec is not None:
            other = other | changed
        return self._flat.read_value(), other, sent, count, size, staleness

    def _is_news(self, rate):
        """Builds whether others have to hear of a rate, whatever is sent."""
        if self._rate is None or self._roster.worker_id:
            return tf.constant(False)
        last = self._last_rate.read_value()
        self._last_rate.assign(rate, read_value=False)
        # All begin with the chief's.
        return ~tf.math.is_nan(last) & tf.not_equal(last, rate)

    def _send(self, before, after, rate, is_news):
        update = before - after
        if self._codec is None:
            scale = tf.ones([], tf.float64)
            message = base.dense(update)
        else:
            scale = tf.where(rate > 0.0, rate, tf.ones_like(rate))
            message, state = tf.cond(
                rate > 0.0,
                lambda: self._encode(update, rate),
                lambda: self._whole(update),
            )
            for key, value in state.items():
                self._codec_state[key].assign(value, read_value=False)
            self._decode(*message, scale)
        is_sent = is_news | ~base.is_nothing(message)
        return self._enqueue(scale, message, rate, before, is_sent)

    def _encode(self, update, rate):
        """Builds a message with the codec, and the codec's next state."""
        # Without the rate, which may be another one when a residual goes.
        update = update / tf.cast(rate, update.dtype)
        return self._codec.encode(update, self._read_codec_state())

    def _whole(self, update):
        """Builds the message of a step at rate 0, of which there is no rest.

        What the codec keeps back has another unit: nothing is added to it.
        """
        message = tf.cond(
            base.all_finite(update),
            lambda: base.dense(update),
            lambda: base.nothing(update.dtype),
        )
        return message, self._read_codec_state()

    def _read_codec_state(self):
        return {k: v.read_value() for k, v in self._codec_state.items()}

    def _enqueue(self, scale, message, rate, before, is_sent):
        """Builds the way of a message to the threads, on a condition."""
        if not self._roster.others:
            return tf.zeros([], tf.int64)
        return tf.cond(
            is_sent,
            lambda: self._put(scale, message, rate, before),
            lambda: tf.zeros([], tf.int64),
        )

    def _put(self, scale, message, rate, before):
        change = before - self._flat.read_value()
        # The sum of all updates with random signs: see `epoch_check`.
        checksum = checksums.of_update(change, self._signs)
        own = self._own.assign_add(tf.stack([1, checksum]))
        number, checksum = tf.unstack(tf.convert_to_tensor(own))
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
                checksum,
            ]
        )
        seen = self._counts.read_value()[:, account.SEEN]
        header = tf.concat([start, seen], 0)
        put = self.transport.outbox.put([header, message.values, message.data])
        with tf.control_dependencies([put]):
            size = messages.build_bytes(header, *message[1:])
            return size * roster.receivers.read_value()

    def receive(self):
        """Builds the application of all messages that are in the inbox.

        Returns:
          Updates, bytes, and the mean staleness of messages, int64.
        """
        if not self._roster.others:
            return [tf.zeros([], tf.int64)] * 3
        return self._apply_all_of(self.transport.inbox)

    def receive_kept(self):
        """Builds the same for the messages of `put_back`."""
        return self._apply_all_of(self._kept)

    def _apply_all_of(self, queue):
        waiting = queue.size()
        before = self._counts.read_value()
        # Read here, and not for each message.
        known, own = self._known.read_value(), self._own.read_value()
        # What is counted is written once, not for each message.
        _, counts = tf.while_loop(
            lambda k, counts: k < waiting,
            lambda k, counts: (
                k + 1,
                self._apply(queue.take(), known, own, counts),
            ),
            (0, before),
            parallel_iterations=1,
        )
        self._counts.assign(counts, read_value=False)
        told = tf.maximum(
            self._told.read_value(), tf.reduce_max(counts[:, account.TOLD])
        )
        self._told.assign(told, read_value=False)
        if self._rate is not None:
            own = self._rate.read_value()
            is_new = counts[0, account.SEEN] > before[0, account.SEEN]
            chiefs = tf.cast(
                tf.bitcast(counts[0, account.RATE], tf.float64), own.dtype
            )
            self._rate.assign(tf.where(is_new, chiefs, own), read_value=False)
        new = tf.unstack(tf.reduce_sum(counts - before, 0))
        fresh = (
            new[account.MESSAGES]
            - new[account.DUPLICATES]
            - new[account.FOREIGN]
            - new[account.EMPTY]
        )
        return (
            new[account.APPLIED],
            new[account.BYTES],
            new[account.STALE] // tf.maximum(fresh, 1),
        )

    def _apply(self, update, known, own, counts):
        """Builds the application of a message; returns the counts with it."""
        length = messages.header_length(self._roster.num_workers)
        header = tf.unstack(tf.ensure_shape(update.header, [length]))
        fresh, is_known = account.is_fresh(counts, header, known)
        kind = tf.cast(header[messages.KIND], tf.int32)
        self._decode(
            tf.where(fresh, kind, base.NOTHING),
            update.values,
            update.data,
            tf.bitcast(header[messages.SCALE], tf.float64),
        )
        return account.add(
            counts,
            header,
            fresh,
            is_known,
            own[0],
            self._roster.worker_id,
            messages.build_bytes(*update),
        )

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
        _, _, fetched, befores, earlier = self.account
        befores[worker] = before = self.sent
        counts = self.counts
        earlier[worker] += int(counts[worker, account.APPLIED])
        earlier[worker] += fetched[worker]
        fetched[worker] = 0
        counts[worker] = 0
        self._counts.assign(counts)
        self.transport.admit(worker, before)
        return before

    def merged(self, vector, kept=False):
        """Builds the application of messages between steps.

        Args:
          vector: The parameters, `[size]`.
          kept: Whether to apply those of `put_back` instead.

        Returns:
          The parameters then; numbers of updates and of bytes, int64.
        """
        self._flat.assign(vector, read_value=False)
        count, size, _ = self.receive_kept() if kept else self.receive()
        return self._flat.read_value(), count, size

    @property
    def sent(self):
        """Number of updates that this worker has sent, int."""
        return int(self._own.numpy()[0])

    @property
    def seen(self):
        """Numbers of the last updates of all workers that are here, a list."""
        seen = self.counts[:, account.SEEN].tolist()
        seen[self._roster.worker_id] = self.sent
        return seen

    @property
    def sums(self):
        """The checksums of all those updates, by worker, a list of int."""
        sums = self.counts[:, account.SUM].tolist()
        sums[self._roster.worker_id] = int(self._own.numpy()[1])
        return sums

    @property
    def earlier(self):
        """Numbers of updates of workers' earlier processes here, a list."""
        return self.account.earlier

    def checksum(self, vector):
        """Checksum of a replica and all its updates, which never changes.

        Args:
          vector: The parameters, `[size]`.

        Returns:
          A float. With rounding it does change a little.
        """
        total = checksums.of_replica(vector, self._signs.numpy())
        return total + sum(self.sums) / checksums.UNITS

    def came_from(self, worker):
        """Number of messages of another worker that have come, int."""
        return int(self.counts[worker, account.MESSAGES])

    @property
    def counts(self):
        """The counts, an int64 array `(num_workers, account.COLUMNS)`."""
        return self._counts.numpy()

    def take_all(self):
        """Takes all messages out of the inbox, a list of `PeerUpdate`."""
        inbox = self.transport.inbox
        with tf.device(self._device):
            return [
                messages.PeerUpdate(*(x.numpy() for x in inbox.take()))
                for _ in range(int(inbox.size()))
            ]

    def put_back(self, updates):
        """Keeps messages of `take_all` for `receive_kept`."""
        with tf.device(self._device):
            for update in updates:
                self._kept.put(update)

    def take_over(self, seen, sums, earlier):
        """Notes updates that are in parameters of another worker.

        Args:
          seen: Numbers of the last updates of all workers in them.
          sums: Their checksums.
          earlier: Numbers of updates of workers' earlier processes in them.
        """
        counts, self.account.earlier[:] = self.counts, earlier
        for worker in self._roster.others:
            self.account.fetched[worker] += int(
                seen[worker] - counts[worker, account.SEEN]
            )
            counts[worker, [account.SEEN, account.SUM]] = (
                seen[worker],
                sums[worker],
            )
        self._counts.assign(counts)

    @property
    def is_flushed(self):
        """Whether all live workers have taken what was sent."""
        return self.transport.is_flushed(self.sent)
