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

As in AD-PSGD, a worker replies at once, also while it computes a gradient. Then
`x` is not yet in Keras's variables: they get it when the step ends, by

    step:    x = x - update, and what was added to x since the last step stays
             ask, if no half is lent
"""

import weakref

import numpy as np
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.compression import base
from tfdist.peers import gossip_account
from tfdist.peers import gossip_transport
from tfdist.peers import messages
from tfdist.peers import neighbours
from tfdist.peers import rate_news

# Places in a header of what `messages` has no names for: the receiver, the
# number of the request that this replies to (0 in a request), in the place of a
# scale when the chief had the learning rate, see `rate_news`, and in that of a
# checksum whether this declines the request.
TO, REPLIES_TO = messages.SEEN, messages.SEEN + 1
RATE_TIME = messages.SCALE
DECLINES = messages.SUM


class GossipChannel:
    """Averages one vector with other workers.

    Args:
      engine: The `GossipEngine`.
      name: The same on all workers, unique on each.
      group: The `flat.FlatGroup`.
      rate: The variable of the optimizer's learning rate, or None: it follows
        that of the chief, worker 0, of which each message has the newest.

    Attributes:
      account: The `GossipAccount`.
      news: The `RateNews`.
      transport: The `GossipTransport`.
    """

    def __init__(self, engine, name, group, rate=None):
        self.name = name
        self.group = group
        self._roster = roster = engine.roster
        self._known = engine.known
        self._told = engine.told
        self._section = engine.section
        self._seed = engine.seed + roster.worker_id
        hidden = private_tensorflow.hidden_variable
        zero, zeros = (
            tf.zeros([], tf.int64),
            tf.zeros([group.size], group.dtype),
        )
        # The parameters, and what was added to them since the last step.
        self._flat, self._added = hidden(zeros), hidden(zeros)
        # Whether they are there: until then, messages wait.
        self._is_open = hidden(tf.constant(False))
        # Since the last step: exchanges, bytes that came, the largest
        # staleness, and bytes of replies.
        self._since = hidden(tf.zeros([4], tf.int64))
        # The half that is lent, if there is a request: its number, receiver,
        # and the step that has sent it.
        self._lent = hidden(zeros)
        self._request = hidden(tf.zeros([3], tf.int64))
        self._sent = hidden(zero)
        self._steps = hidden(zero)
        self.news = rate_news.RateNews(not roster.worker_id, rate)
        self.account = gossip_account.GossipAccount(roster.num_workers)
        scalar = tf.TensorSpec([], tf.int64)
        vector = tf.TensorSpec([group.size], group.dtype)
        any_vector = tf.TensorSpec([None], group.dtype)
        # Functions of their own: else TensorFlow takes the shapes that they
        # expect for those of all messages, and counts wrong bytes.
        self._serve = _function(self._build_serve, scalar, scalar, any_vector)
        self._finish = _function(
            self._build_finish, scalar, any_vector, tf.TensorSpec([], tf.bool)
        )
        # The same: all of each happens under the lock.
        self._end_step_locked = _function(
            self._build_end_step, vector, tf.TensorSpec([], tf.float64)
        )
        self._merge_locked = _function(self._build_merge, vector)
        self._handle_locked = _function(
            self._build_handle, tf.TensorSpec([None], tf.int64), any_vector
        )
        self._admit_locked = _function(self._build_admit, scalar)
        self._handle = _function(
            lambda *message: self._section.execute(
                lambda: self._handle_locked(*message)
            ),
            tf.TensorSpec([None], tf.int64),
            any_vector,
        )
        self.transport = gossip_transport.GossipTransport(
            weakref.WeakMethod(self.handle),
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

    # Within a step.

    def exchange(self, before, after, rate):
        """Builds what a step does after the optimizer's.

        Args:
          before: Unused: parameters before the step.
          after: Those that Keras's optimizer has made of them, `[size]`.
          rate: Its learning rate, scalar float64.

        Returns:
          As `Channel.exchange`: exchanges count instead of updates, and the
          staleness is the number of this worker's steps in which its exchange
          that has ended was under way, or 0.
        """
        zero = tf.zeros([], tf.int64)
        if not self._roster.others:
            return after, tf.constant(False), zero, zero, zero, zero
        vector, since, asked = self._section.execute(
            lambda: self._end_step_locked(after, rate)
        )
        count, size, staleness, replies = tf.unstack(since)
        return vector, count > 0, replies + asked, count, size, staleness

    def _build_end_step(self, after, rate):
        step = tf.convert_to_tensor(self._steps.assign_add(1))
        self.news.build_step(rate)
        vector, since = self._build_merge(after)
        asked = tf.cond(
            tf.equal(self._request.read_value()[0], 0),
            lambda: self._ask(step),
            lambda: tf.zeros([], tf.int64),
        )
        return vector, since, asked

    def _build_merge(self, vector):
        """Builds the sum of a vector and what was added; returns `_since`."""
        self._give_up_request()
        self.news.build_adopt()
        since = tf.identity(self._since.read_value())

        def add():
            total = vector + self._added.read_value()
            self._added.assign(tf.zeros_like(total), read_value=False)
            return total

        vector = tf.cond(since[0] > 0, add, lambda: tf.identity(vector))
        self._flat.assign(vector, read_value=False)
        self._since.assign(tf.zeros([4], tf.int64), read_value=False)
        self._is_open.assign(True, read_value=False)
        return vector, since

    def _ask(self, step):
        """Builds a request to a random neighbour, if there is any."""
        others = np.arange(self._roster.num_workers) != self._roster.worker_id
        is_there = tf.not_equal(self._known.read_value(), 0) & others
        candidates = tf.where(is_there)[:, 0]

        def ask():
            to = neighbours.build_neighbour(self._seed, step, candidates)
            half = 0.5 * self._flat.read_value()
            self._lent.assign(half, read_value=False)
            zero = tf.zeros([], tf.int64)
            number, size = self._put(to, zero, zero, half)
            self._request.assign(tf.stack([number, to, step]))
            self.account.build_count(to, {gossip_account.BEGUN: 1})
            return size

        return tf.cond(
            tf.size(candidates) > 0, ask, lambda: tf.zeros([], tf.int64)
        )

    def _put(self, to, replies_to, declines, vector):
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
            DECLINES: declines,
        }
        zero = tf.zeros([], tf.int64)
        length = messages.header_length(roster.num_workers)
        header = tf.stack([places.get(k, zero) for k in range(length)])
        put = self.transport.outbox.put([header, *message[1:]])
        with tf.control_dependencies([put]):
            size = messages.build_bytes(header, *message[1:])
        return number, size

    def _give_up_request(self):
        """Builds the end of an exchange with a worker that has been lost."""
        request = self._request.read_value()
        is_lost = tf.equal(tf.gather(self._known, request[1]), 0)

        def end():
            self._request.assign(tf.zeros([3], tf.int64))
            self.account.build_count(request[1], {gossip_account.GIVEN_UP: 1})
            return tf.constant(True)

        tf.cond(
            tf.not_equal(request[0], 0) & is_lost,
            end,
            lambda: tf.constant(False),
        )

    # At any time.

    def handle(self, update):
        """Handles a message.

        Args:
          update: The tensors of a `PeerUpdate`.

        Returns:
          Whether it could be: not before the parameters are there.
        """
        return bool(self._handle(update.header, update.values))

    def _build_handle(self, header, values):
        return tf.cond(
            self._is_open.read_value(),
            lambda: self._take(header, values),
            lambda: tf.constant(False),
        )

    def _take(self, header, values):
        """Builds the handling of one message; returns True."""
        size = messages.build_bytes(header, values)
        length = messages.header_length(self._roster.num_workers)
        header = tf.unstack(tf.ensure_shape(header, [length]))
        sender, last = header[messages.SENDER], header[messages.LAST]
        is_known = tf.equal(
            tf.gather(self._known.read_value(), sender),
            header[messages.INCARNATION],
        )
        is_numbered = is_known & (last > 0)
        seen = self.account.build_seen(sender)
        is_fresh = is_numbered & (last > seen)
        request = self._request.read_value()
        is_request = is_fresh & tf.equal(header[REPLIES_TO], 0)
        is_reply = (
            is_fresh
            & (request[0] > 0)
            & tf.equal(header[REPLIES_TO], request[0])
        )
        zero = tf.zeros([], tf.int64)
        replies = tf.cond(
            is_request,
            lambda: self._serve(sender, last, values),
            lambda: zero,
        )
        staleness = tf.cond(
            is_reply,
            lambda: self._finish(sender, values, header[DECLINES] > 0),
            lambda: zero,
        )
        flags = {
            gossip_account.ENDED: is_reply,
            gossip_account.SERVED: is_request,
            gossip_account.DUPLICATES: is_numbered & ~is_fresh,
            gossip_account.FOREIGN: ~is_known,
        }
        numbers = {
            gossip_account.SEEN: tf.where(is_fresh, last - seen, zero),
            gossip_account.MESSAGES: 1,
            gossip_account.BYTES: size,
        }
        self.account.build_count(sender, {**flags, **numbers})
        stop = tf.where(is_known, header[messages.STOP], zero)
        told = tf.maximum(self._told.read_value(), stop)
        self._told.assign(told, read_value=False)
        self.news.build_hear(is_fresh, header[RATE_TIME], header[messages.RATE])
        since = self._since.read_value()
        ended = tf.cast(is_request | is_reply, tf.int64)
        stalest = tf.maximum(staleness - since[2], 0)
        more = tf.stack([ended, size, stalest, replies])
        self._since.assign_add(more, read_value=False)
        return tf.constant(True)

    def _build_serve(self, sender, number, half):
        """Builds the reply to a request; returns its bytes."""
        half = tf.ensure_shape(half, [self.group.size])
        vector = self._flat.read_value()
        given = tf.cond(
            tf.equal(self._request.read_value()[0], 0),
            lambda: 0.5 * vector,
            lambda: vector - self._lent.read_value(),
        )
        is_gain = self._gain(sender, half - given, tf.constant(False))
        # What is not finite goes back as it came, and changes nobody.
        declines = tf.cast(~is_gain, tf.int64)
        reply = tf.where(is_gain, given, half)
        _, size = self._put(sender, number, declines, reply)
        return size

    def _build_finish(self, sender, half, is_declined):
        """Builds the end of an exchange; returns its duration in steps."""
        half = tf.ensure_shape(half, [self.group.size])
        self._gain(sender, half - self._lent.read_value(), is_declined)
        began = self._request.read_value()[2]
        self._request.assign(tf.zeros([3], tf.int64), read_value=False)
        # The step that ends next is one of them.
        return self._steps.read_value() + 1 - began

    def _gain(self, sender, change, is_declined):
        """Builds the addition of what has come from a worker, if finite."""
        total = tf.reduce_sum(tf.cast(change, tf.float64))
        is_gain = tf.math.is_finite(total) & ~is_declined
        change = tf.where(is_gain, change, tf.zeros_like(change))
        self._flat.assign_add(change, read_value=False)
        self._added.assign_add(change, read_value=False)
        self.account.build_gain(sender, change, is_gain)
        return is_gain

    # Between steps.

    def admit(self, worker):
        """Ends what there was with a worker: another process of it joins.

        Args:
          worker: Its number.

        Returns:
          0: it need not have anything from before.
        """
        worker_id = tf.constant(worker, tf.int64)
        self._section.execute(lambda: self._admit_locked(worker_id))
        self.transport.admit(worker, 0)
        return 0

    def _build_admit(self, worker):
        request = self._request.read_value()
        is_asked = (request[0] > 0) & tf.equal(request[1], worker)
        request = tf.where(is_asked, tf.zeros_like(request), request)
        self._request.assign(request, read_value=False)
        numbers = {
            gossip_account.GIVEN_UP: is_asked,
            gossip_account.SEEN: -self.account.build_seen(worker),
        }
        self.account.build_count(worker, numbers)
        return is_asked

    def merged(self, vector, kept=False):
        """Builds the sum of the parameters and of what was added to them.

        Args:
          vector: The parameters, `[size]`.
          kept: Unused: nothing is kept.

        Returns:
          The sum; numbers of exchanges and of bytes, int64.
        """
        if not self._roster.others:
            return vector, *[tf.zeros([], tf.int64)] * 2
        vector, since = self._section.execute(
            lambda: self._merge_locked(vector)
        )
        return vector, since[0], since[1]

    @property
    def overdue(self):
        """The request that has not ended during a whole step; None if none."""
        request = self.request
        if request is None or request[2] == int(self._steps.numpy()):
            return None
        return request

    def close(self):
        """Lets messages wait until the next step has ended."""
        self._is_open.assign(False)

    def came_from(self, worker):
        """Number of messages of another worker that have come, int."""
        return int(self.account.counts[worker, gossip_account.MESSAGES])

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
        return self.account.counts[:, gossip_account.SEEN].tolist()

    @property
    def sums(self):
        """Zeros: there are no updates of which there are checksums."""
        return [0] * self._roster.num_workers

    @property
    def earlier(self):
        """Zeros: there are no updates."""
        return [0] * self._roster.num_workers


def _function(build, *specs):
    """A function that ends when all that it does has been done."""
    return tf.function(
        build,
        input_signature=specs,
        autograph=False,
        experimental_attributes=private_tensorflow.STAYS_A_FUNCTION,
    )
