"""One flat vector of a lane, which workers average in pairs.

A worker has at most one exchange of its own under way. With `x` its parameters,

    ask:     h = x / 2, which is lent, and sent to a random neighbour
    serve:   k = x / 2, or x - h while this worker's own half is lent
             x = x + (theirs - k), and k is the reply
    finish:  x = x + (reply - h)

Without a step in between, both end at the mean of their parameters, as of
AD-PSGD. Steps in between change `x` as they would have changed the mean. What
one worker gains by an exchange is what the other one loses: the sum over all
workers changes by their steps alone. What is served while a half is lent is the
other half, so that every value is a mean of values that workers have had, with
weights of 0 or more, however late a reply is.
"""

import weakref

import numpy as np
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.compression import base
from tfdist.peers import gossip_transport
from tfdist.peers import messages
from tfdist.peers import rate_news

# Places in a header of what `messages` has no names for: the receiver, the
# number of the request that this replies to (0 in a request), and in the place
# of a scale when the chief had the learning rate, see `rate_news`.
TO, REPLIES_TO = messages.SEEN, messages.SEEN + 1
RATE_TIME = messages.SCALE

# Columns of what is counted for each other worker: the number of its last
# message; exchanges that this worker has begun, and that have ended; those
# that it has given up with the other worker; exchanges that the other worker
# has begun and this one has replied to; those of either with values that are
# not finite; messages, those that came twice, those of a process that does not
# count; and bytes.
COUNTS = 10
(
    SEEN,
    BEGUN,
    ENDED,
    GIVEN_UP,
    SERVED,
    DECLINED,
    MESSAGES,
    DUPLICATES,
    FOREIGN,
    BYTES,
) = range(COUNTS)


def build_neighbour(seed, number, candidates):
    """Builds the draw of a neighbour, each with the same probability.

    Args:
      seed: int, of this worker.
      number: Scalar int64, of the draw.
      candidates: `[n]` int64, numbers of workers; at least one.

    Returns:
      One of them.
    """
    place = tf.random.stateless_uniform(
        [],
        tf.stack([tf.constant(seed, tf.int64), number]),
        maxval=tf.size(candidates),
        dtype=tf.int32,
    )
    return tf.gather(candidates, place)


class GossipChannel:
    """Averages one vector with other workers; has the methods of `Channel`.

    Args:
      engine: The `GossipEngine`.
      name: The same on all workers, unique on each.
      group: The `flat.FlatGroup`.
      rate: The variable of the optimizer's learning rate, or None: it follows
        that of the chief, worker 0, of which each message has the newest.

    Attributes:
      news: The `RateNews`.
    """

    def __init__(self, engine, name, group, rate=None):
        self.name = name
        self.group = group
        self._roster = roster = engine.roster
        self._known = engine.known
        self._told = engine.told
        self._seed = engine.seed + roster.worker_id
        hidden = private_tensorflow.hidden_variable
        zero = tf.zeros([], tf.int64)
        # The parameters, while a step is changing them.
        self._flat = hidden(tf.zeros([group.size], group.dtype))
        # The half that is lent, if there is a request: its number, receiver,
        # and the step that has sent it.
        self._lent = hidden(tf.zeros([group.size], group.dtype))
        self._request = hidden(tf.zeros([3], tf.int64))
        self._sent = hidden(zero)
        self._steps = hidden(zero)
        self.news = rate_news.RateNews(not roster.worker_id, rate)
        workers = roster.num_workers
        self._counts = hidden(tf.zeros([workers, COUNTS], tf.int64))
        # Sums of the elements that have come from other workers.
        self._gained = hidden(tf.zeros([workers], tf.float64))
        self._distance = hidden(tf.zeros([], tf.float64))
        # Functions of their own: else TensorFlow takes the shapes that they
        # expect for those of all messages, and counts wrong bytes.
        self._serve = self._of_message(self._build_serve)
        self._finish = self._of_message(self._build_finish)
        self.transport = gossip_transport.GossipTransport(
            roster,
            name,
            engine.dense,
            group.size,
            group.dtype,
            engine.tolerance,
            engine.device,
        )
        # At the end of the process `transport.end_all` does.
        weakref.finalize(self, self.transport.close).atexit = False

    def _of_message(self, build):
        scalar = tf.TensorSpec([], tf.int64)
        return tf.function(
            build,
            input_signature=[
                scalar,
                scalar,
                tf.TensorSpec([None], self.group.dtype),
            ],
            autograph=False,
            experimental_attributes=private_tensorflow.STAYS_A_FUNCTION,
        )

    # Within a step.

    def exchange(self, before, after, rate):
        """Builds what a step does after the optimizer's.

        Args:
          before: Unused: parameters before the step.
          after: Those that Keras's optimizer has made of them, `[size]`.
          rate: Its learning rate, scalar float64.

        Returns:
          As `Channel.exchange`: exchanges count instead of updates, and the
          staleness is the number of this worker's steps since it has begun the
          one that has ended, or 0.
        """
        del before
        zero = tf.zeros([], tf.int64)
        if not self._roster.others:
            return after, tf.constant(False), zero, zero, zero, zero
        self._flat.assign(after, read_value=False)
        step = tf.convert_to_tensor(self._steps.assign_add(1))
        self.news.build_step(rate)
        count, size, staleness, sent = self._receive()
        sent += tf.cond(
            tf.equal(self._request.read_value()[0], 0),
            lambda: self._ask(step),
            lambda: zero,
        )
        vector = self._flat.read_value()
        return vector, count > 0, sent, count, size, staleness

    def _ask(self, step):
        """Builds a request to a random neighbour, if there is any."""
        others = np.arange(self._roster.num_workers) != self._roster.worker_id
        is_there = tf.not_equal(self._known.read_value(), 0) & others
        candidates = tf.where(is_there)[:, 0]

        def ask():
            to = build_neighbour(self._seed, step, candidates)
            half = 0.5 * self._flat.read_value()
            self._lent.assign(half, read_value=False)
            number, size = self._put(to, tf.zeros([], tf.int64), half)
            self._request.assign(tf.stack([number, to, step]))
            self._count(to, {BEGUN: 1})
            return size

        return tf.cond(
            tf.size(candidates) > 0, ask, lambda: tf.zeros([], tf.int64)
        )

    def _put(self, to, replies_to, vector):
        """Builds the sending of a message; returns its number and bytes."""
        number = tf.convert_to_tensor(self._sent.assign_add(1))
        roster = self._roster
        since, rate = self.news.build_read()
        message = base.dense(vector)
        places = {
            messages.SENDER: tf.constant(roster.worker_id, tf.int64),
            messages.INCARNATION: tf.constant(roster.incarnation, tf.int64),
            messages.FIRST: number,
            messages.LAST: number,
            messages.RATE: rate,
            RATE_TIME: since,
            messages.KIND: tf.cast(message.kind, tf.int64),
            TO: to,
            REPLIES_TO: replies_to,
        }
        zero = tf.zeros([], tf.int64)
        length = messages.header_length(roster.num_workers)
        header = tf.stack([places.get(k, zero) for k in range(length)])
        put = self.transport.outbox.put([header, *message[1:]])
        with tf.control_dependencies([put]):
            size = messages.build_bytes(header, *message[1:])
        return number, size

    def receive(self):
        """Builds the handling of all messages that are in the inbox.

        Returns:
          Exchanges, bytes, and the staleness, int64.
        """
        if not self._roster.others:
            return [tf.zeros([], tf.int64)] * 3
        return self._receive()[:3]

    def _receive(self):
        self._give_up_request()
        waiting = self.transport.inbox.size()
        known = self._known.read_value()
        zero = tf.zeros([], tf.int64)
        # Exchanges, bytes, staleness, and bytes of replies.
        _, *found = tf.while_loop(
            lambda k, *found: k < waiting,
            lambda k, *found: (k + 1, *self._take(known, *found)),
            (0, *[zero] * 4),
            parallel_iterations=1,
        )
        return found

    def _give_up_request(self):
        """Builds the end of an exchange with a worker that has been lost."""
        request = self._request.read_value()
        is_lost = tf.equal(tf.gather(self._known, request[1]), 0)

        def end():
            self._request.assign(tf.zeros([3], tf.int64))
            self._count(request[1], {GIVEN_UP: 1})
            return tf.constant(True)

        tf.cond(
            tf.not_equal(request[0], 0) & is_lost,
            end,
            lambda: tf.constant(False),
        )

    def _take(self, known, exchanges, came, staleness, sent):
        """Builds the handling of one message."""
        update = self.transport.inbox.take()
        length = messages.header_length(self._roster.num_workers)
        header = tf.unstack(tf.ensure_shape(update.header, [length]))
        sender, last = header[messages.SENDER], header[messages.LAST]
        is_known = tf.equal(
            tf.gather(known, sender), header[messages.INCARNATION]
        )
        is_numbered = is_known & (last > 0)
        seen = tf.gather(self._counts.read_value()[:, SEEN], sender)
        is_fresh = is_numbered & (last > seen)
        request = self._request.read_value()
        is_request = is_fresh & tf.equal(header[REPLIES_TO], 0)
        is_reply = (
            is_fresh
            & (request[0] > 0)
            & tf.equal(header[REPLIES_TO], request[0])
        )
        zero = tf.zeros([], tf.int64)
        sent += tf.cond(
            is_request,
            lambda: self._serve(sender, last, update.values),
            lambda: zero,
        )
        staleness += tf.cond(
            is_reply,
            lambda: self._finish(sender, last, update.values),
            lambda: zero,
        )
        size = messages.build_bytes(*update)
        flags = {
            SEEN: is_fresh,
            ENDED: is_reply,
            SERVED: is_request,
            DUPLICATES: is_numbered & ~is_fresh,
            FOREIGN: ~is_known,
        }
        numbers = {k: tf.cast(v, tf.int64) for k, v in flags.items()}
        numbers[SEEN] *= last - seen
        self._count(sender, {**numbers, MESSAGES: 1, BYTES: size})
        stop = tf.where(is_known, header[messages.STOP], zero)
        told = tf.maximum(self._told.read_value(), stop)
        self._told.assign(told, read_value=False)
        self.news.build_hear(is_fresh, header[RATE_TIME], header[messages.RATE])
        exchanges += numbers[SERVED] + numbers[ENDED]
        return exchanges, came + size, staleness, sent

    def _count(self, worker, numbers):
        """Builds additions to the counts of a worker, by column."""
        row = [
            tf.cast(numbers.get(column, 0), tf.int64)
            for column in range(COUNTS)
        ]
        self._counts.scatter_add(tf.IndexedSlices(tf.stack(row), worker))

    def _build_serve(self, sender, number, half):
        """Builds the reply to a request; returns its bytes."""
        half = tf.ensure_shape(half, [self.group.size])
        vector = self._flat.read_value()
        given = tf.cond(
            tf.equal(self._request.read_value()[0], 0),
            lambda: 0.5 * vector,
            lambda: vector - self._lent.read_value(),
        )
        is_finite = self._gain(sender, half - given)
        # What is not finite goes back as it came, and changes nobody.
        _, size = self._put(sender, number, tf.where(is_finite, given, half))
        return size

    def _build_finish(self, sender, number, half):
        """Builds the end of an exchange; returns its duration in steps."""
        del number
        half = tf.ensure_shape(half, [self.group.size])
        self._gain(sender, half - self._lent.read_value())
        began = self._request.read_value()[2]
        self._request.assign(tf.zeros([3], tf.int64), read_value=False)
        return self._steps.read_value() - began

    def _gain(self, sender, change):
        """Builds the addition of what has come from a worker, if finite."""
        total = tf.reduce_sum(tf.cast(change, tf.float64))
        is_finite = tf.math.is_finite(total)
        change = tf.where(is_finite, change, tf.zeros_like(change))
        self._flat.assign_add(change, read_value=False)
        total = tf.where(is_finite, total, 0.0)
        self._gained.scatter_add(tf.IndexedSlices(total, sender))
        # Halves are as far apart as half of the parameters.
        square = tf.cast(tf.reduce_sum(tf.square(change)), tf.float64)
        self._distance.assign(2.0 * tf.sqrt(square), read_value=False)
        self._count(sender, {DECLINED: tf.cast(~is_finite, tf.int64)})
        return is_finite

    # Between steps.

    def admit(self, worker):
        """Ends what there was with a worker: another process of it joins.

        Args:
          worker: Its number.

        Returns:
          0: it need not have anything from before.
        """
        counts = self.counts
        if (request := self.request) and request[1] == worker:
            self._request.assign(tf.zeros([3], tf.int64))
            counts[worker, GIVEN_UP] += 1
        counts[worker, SEEN] = 0
        self._counts.assign(counts)
        self.transport.admit(worker, 0)
        return 0

    def begin(self, vector):
        """Builds: what comes changes this vector, `[size]`."""
        self._flat.assign(vector, read_value=False)

    def vector(self):
        """Builds the vector with what has come."""
        return self._flat.read_value()

    def came_from(self, worker):
        """Number of messages of another worker that have come, int."""
        return int(self.counts[worker, MESSAGES])

    @property
    def request(self):
        """Number, receiver and step of the request under way; None if none."""
        found = self._request.numpy().tolist()
        return tuple(found) if found[0] else None

    @property
    def sent(self):
        """Number of messages that this worker has sent, int."""
        return int(self._sent.numpy())

    @property
    def seen(self):
        """Numbers of the last messages of other workers, a list."""
        return self.counts[:, SEEN].tolist()

    @property
    def sums(self):
        """Zeros: there are no updates of which there are checksums."""
        return [0] * self._roster.num_workers

    @property
    def earlier(self):
        """Zeros: there are no updates."""
        return [0] * self._roster.num_workers

    @property
    def counts(self):
        """The counts, an int64 array `(num_workers, COUNTS)`."""
        return self._counts.numpy()

    @property
    def gained(self):
        """Sums of elements that came from workers, float64 `(num_workers,)`."""
        return self._gained.numpy()

    @property
    def distance(self):
        """Euclidean distance from the other worker in the last exchange."""
        return float(self._distance.numpy())
