"""A worker tells of its gradient, and waits until it is decided over.

It waits in a mailbox of its own, outside the lock of the state. What counts is
the state: a waiting worker whose token was lost is given another with its next
heartbeat.
"""

import dataclasses

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.synchronization import traced_events


@dataclasses.dataclass(frozen=True)
class Decision:
    """Fate of a worker's gradient; tensors on the first server.

    Attributes:
      accepted: Whether it is part of an update, scalar bool.
      staleness: Updates that it is late by, scalar int64.
      arrival: Number of its arrival among all arrivals, scalar int64.
      wait: Seconds from its arrival until the worker might go on, scalar
        float64.
      head: Length of the log, scalar int64.
      log: The log's ring, int64 of shape (6, ring): key, staleness, first,
        count, worker, see `State`; and, in the first places of the last row,
        up to which key each worker's gradients are void, see `events.fence`.
      epoch: The `Ledger.epoch` in which the worker sent the gradient, scalar
        int64.
    """

    accepted: tf.Tensor
    staleness: tf.Tensor
    arrival: tf.Tensor
    wait: tf.Tensor
    head: tf.Tensor
    log: tf.Tensor
    epoch: tf.Tensor


class Submission:
    """Builds the part of a training step in which its gradient arrives.

    Args:
      ledger: The `Ledger`.
      shared: Its `SharedState`.
      events: Its `TracedEvents`.
      mailboxes: Its `WakeUpQueues`.
      worker: Number of this worker.
    """

    def __init__(self, ledger, shared, events, mailboxes, worker):
        self._ledger = ledger
        self._shared = shared
        self._events = events
        self._mailboxes = mailboxes
        self._worker = worker

    def build(
        self, key, pulled, after, last=False, finite=None, claim=lambda _: None
    ):
        """See `Ledger.arrive`."""
        mine = self._worker
        my_epoch = self._ledger.read_epoch()
        with tf.control_dependencies(after), self._shared.on_server():
            began = _now()
            key, pulled = tf.identity(key), tf.identity(pulled)
            my_epoch = tf.identity(my_epoch)

        def event(attendance, claim=lambda _: None):
            current = self._ledger.is_current(my_epoch)
            new = claim(current)
            return traced_events.event(
                attendance,
                mine,
                key=key,
                pulled=pulled,
                finite=True if finite is None else finite,
                # Of a batch that has counted before it is void.
                current=current if new is None else current & new,
            )

        def arrived(state, attendance):
            state, woken = self._events.call(
                "arrive", state, event(attendance), last=last
            )
            return state, woken, ()

        def collected(state, attendance):
            self._mailboxes.drain(mine)
            staged = self._ledger.leftovers.read(0)
            state, *outcome = self._events.call(
                "collect", state, event(attendance), staged
            )
            return state, None, outcome

        def submitted(state, attendance):
            staged = self._ledger.leftovers.read(0)
            state, *outcome = self._events.call(
                "submit", state, event(attendance, claim), staged, last=last
            )
            return state, None, outcome

        waits = self._ledger.method.waits
        outcome, unlock = self._shared.transact(
            arrived if waits else submitted,
            after=[began.op, key.op, pulled.op, my_epoch.op],
        )
        if waits:
            unlock = self._wait(unlock, my_epoch)
            outcome, unlock = self._shared.transact(collected, after=[unlock])
        accepted, staleness, arrival, head, log = outcome
        with tf.control_dependencies([unlock]), self._shared.on_server():
            wait = tf.cast(_now() - began, tf.float64) * 1e-6
        return Decision(accepted, staleness, arrival, wait, head, log, my_epoch)

    def _wait(self, after, epoch):
        """Sleeps until this worker's gradient is decided over.

        Or until there is nothing to decide, as another epoch has begun, or it
        is told to leave: the others will carry the decision out.
        """

        def is_over():
            may_go_on = self._events.call(
                "may_go_on",
                self._shared.read_vector(),
                tf.constant(self._worker, tf.int64),
            )
            return tf.logical_or(
                may_go_on,
                tf.logical_not(self._ledger.is_current(epoch)),
            )

        def sleep(go_on):
            with self._shared.on_server():
                token = self._mailboxes.sleep(self._worker)
                with tf.control_dependencies([token]):
                    return is_over()

        with tf.control_dependencies([after]), self._shared.on_server():
            (over,) = tf.while_loop(
                tf.logical_not, sleep, [is_over()], parallel_iterations=1
            )
            return tf.identity(over).op


def _now():
    """Microseconds since the epoch, by the clock of the device in scope."""
    time = tf.timestamp()
    private_tensorflow.run_independently(time.op)
    return tf.cast(time * 1e6, tf.int64)
