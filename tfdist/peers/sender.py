"""The thread that sends updates to one other worker."""

import threading
import time

from absl import logging
import numpy as np
import tensorflow as tf

from tfdist.cluster import sessions
from tfdist.compression import base
from tfdist.peers import board
from tfdist.peers import messages

# Seconds between two attempts, where the receiver's queue is full and where
# its server does not answer.
_FULL_SECONDS = 0.005
_SILENT_SECONDS = 0.1
# The slowest link that is expected: the first attempt to send a message has
# time for its bytes at this speed.
_BYTES_PER_SECOND = 10e6


class PeerSender:
    """Sends what waits for one receiver, in order, each update exactly once.

    A message whose fate is unknown, as the receiver's server did not answer in
    time, is sent again as it was; the receiver drops what has a number that it
    has seen. Before that, and before a message for which the receiver's queue
    had no room is sent again, the server has to answer a small call. As the
    link may be slow, each further attempt has twice the time, and the next
    message at least twice what this one took. A receiver that does not answer
    for `timeout` seconds is given up, as is one that answers and takes nothing
    for `stall` seconds. What was on the way to it then counts as lost, whether
    it has arrived or not.

    Args:
      roster: The `Roster`.
      worker: Number of the receiver.
      queue: The `Queue` there.
      backlog: The `Backlog`.
      timeout: Seconds.
      stall: Seconds; None for no bound.
      since: Number of this worker's last update from before the receiver came,
        which has it and those before from elsewhere.

    Attributes:
      delivered: Number of updates that have been taken.
      lost: Number of those that never will be.
      repeated: Number of messages that were sent again.
    """

    def __init__(self, roster, worker, queue, backlog, timeout, stall, since=0):
        self._roster = roster
        self.worker = worker
        # The process that this sends to; one that joins has another sender.
        self._incarnation = None
        self._queue = queue
        self._backlog = backlog
        self._timeout = timeout
        self._stall = stall
        self._since = since
        # The same, of a snapshot that the receiver has joined with.
        self._seen = 0
        self._changed = threading.Condition()
        # Messages of the call under way.
        self._in_flight = []
        # Number of the call of `fit` that is to stop; of the one for which
        # the receiver knows it.
        self._stop = self._told = 0
        self._probes = False
        self._closes = self._has_ended = False
        # A session with the receiver, the call that sends a `Packed`, and one
        # that sends nothing.
        self._session = self._call = self._ask = None
        # Times the usual time that the first attempt of a message has.
        self._slowness = 1.0
        self.delivered = self.lost = 0
        self.repeated = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, updates):
        """Hands over a list of `PeerUpdate`s."""
        with self._changed:
            # What was enqueued before may come here later.
            updates = [u for u in updates if u.last > self._since]
            if self._has_ended or self._roster.is_lost(self.worker):
                self.lost += sum(update.count for update in updates)
                return
            for update in updates:
                if update.last > self._seen:
                    self._backlog.put(update)
                else:
                    self.delivered += update.count
            self._changed.notify()
            if self._backlog.is_full:
                self._give_up("it takes too long to join")

    def stop(self, number):
        """Tells the receiver that a call of `fit` is to stop.

        Args:
          number: Of that call.
        """
        with self._changed:
            self._stop = number
            self._changed.notify()

    def probe(self):
        """Asks whether the receiver is still there, if nothing else does."""
        with self._changed:
            self._probes = True
            self._changed.notify()

    def release(self, seen):
        """Called when a joiner is there; see `Backlog.release`."""
        with self._changed:
            self._seen = seen
            self.delivered += self._backlog.updates
            self._backlog.release(seen)
            self.delivered -= self._backlog.updates

    @property
    def is_idle(self):
        """Whether nothing waits and nothing is on the way."""
        with self._changed:
            untold = self._told != self._stop
            return not (
                len(self._backlog)
                or self._in_flight
                or untold
                and not self._roster.is_lost(self.worker)
            )

    def is_alive(self):
        """Whether the thread is there."""
        return self._thread.is_alive()

    def close(self):
        """Ends the thread, when it has sent what it is sending."""
        with self._changed:
            self._closes = True
            self._changed.notify()

    def join(self, seconds):
        """Waits until the thread has ended, for some seconds."""
        self._thread.join(seconds)

    def _run(self):
        while updates := self._next():
            self._deliver(updates)
        self._end_session()
        # From here on, only what this has counted is needed.
        self._graph = None
        with self._changed:
            self._has_ended = True
            self._forget()

    def _next(self):
        """Waits for messages of one call, a list; none at the end."""
        with self._changed:
            while not self._closes:
                if self._roster.is_lost(self.worker):
                    self._forget()
                if updates := self._backlog.take_together():
                    return self._start_call(updates)
                if (stop := self._stop_message()) is not None:
                    return self._start_call([stop])
                self._changed.wait()
            return []

    def _start_call(self, updates):
        headers = [np.array(update.header) for update in updates]
        for header in headers:
            header[messages.STOP] = self._stop
        self._in_flight = [
            update._replace(header=header)
            for update, header in zip(updates, headers, strict=True)
        ]
        return self._in_flight

    def _stop_message(self):
        probes, self._probes = self._probes, False
        if self._roster.is_lost(self.worker):
            return None
        if self._told == self._stop and not probes:
            return None
        roster = self._roster
        length = messages.header_length(roster.num_workers)
        header = np.zeros([length], np.int64)
        header[messages.SENDER] = roster.worker_id
        header[messages.INCARNATION] = roster.incarnation
        header[messages.KIND] = base.NOTHING
        return messages.PeerUpdate(
            header,
            np.zeros([0], self._queue.dtypes[1].as_numpy_dtype),
            np.zeros([0], np.uint8),
        )

    def _forget(self):
        self.lost += self._backlog.updates
        self._backlog.clear()

    def _deliver(self, updates):
        """Sends messages until they are taken, or the receiver given up."""
        # Of the time in which this process itself was stopped little counts.
        silent = full = 0.0
        again, is_answering, is_slow, has_room = False, True, False, True
        size = sum(update.bytes for update in updates)
        usual = self._timeout / 3 + size / _BYTES_PER_SECOND
        seconds = self._slowness * usual
        before = time.monotonic()
        while not (self._roster.is_lost(self.worker) or self._closes):
            error, is_taken = "its queue is full", False
            try:
                if self._session is None:
                    self._open()
                if is_answering and has_room:
                    is_taken, membership = self._send(updates, seconds)
                    has_room = is_taken
                    silent = 0.0
                else:
                    # Without the messages, which may be the whole model.
                    had_room = has_room
                    has_room, membership = self._ask()
                    if not had_room:
                        # Its queue was full, and it still answers.
                        silent = 0.0
                    if is_slow and not is_answering:
                        silent, seconds = 0.0, 2 * seconds
                        is_slow = False
                        logging.warning(
                            "%s answers: the next attempt to send %d bytes "
                            "has %.3g s.",
                            self._roster.names[self.worker],
                            size,
                            seconds,
                        )
                    is_answering = True
                self._look(membership)
            except (tf.errors.OpError, RuntimeError, OSError) as raised:
                self._end_session()
                error = type(raised).__name__
                if not again:
                    logging.warning(
                        "%s does not answer (%s): updates wait for it.",
                        self._roster.names[self.worker],
                        error,
                    )
                if is_answering and has_room:
                    is_slow = isinstance(
                        raised, tf.errors.DeadlineExceededError
                    )
                again, is_answering = True, False
            if is_taken:
                self.repeated += again * len(updates)
                took = min(time.monotonic() - before, seconds)
                self._slowness = max(1.0, 2.0 * took / usual)
                self._count(updates)
                return
            time.sleep(_FULL_SECONDS if is_answering else _SILENT_SECONDS)
            now = time.monotonic()
            passed, before = now - before, now
            full += min(passed, seconds + 1.0)
            if not is_answering:
                silent += min(passed, self._timeout / 3 + 1.0)
            if silent > self._timeout:
                self._give_up(f"{error} for {self._timeout:g} s")
            elif self._stall is not None and full > self._stall:
                self._give_up(f"it takes no updates for {self._stall:g} s")
        with self._changed:
            self.lost += sum(update.count for update in updates)
            self._in_flight = []

    def _send(self, updates, seconds):
        options = tf.compat.v1.RunOptions(timeout_in_ms=round(1000 * seconds))
        return self._call(*messages.pack(updates), options=options)

    def _look(self, membership):
        """Looks at what the receiver says of itself, and of this worker."""
        roster = self._roster
        if membership[0] != self._incarnation:
            self._give_up("it was started again")
        elif membership[1 + roster.worker_id]:
            roster.given_up_by = self.worker

    def _give_up(self, reason):
        waiting = self._backlog.updates
        waiting += sum(update.count for update in self._in_flight)
        self._roster.give_up(
            self.worker,
            f"{reason}; {waiting} updates are undelivered",
            self._incarnation,
        )

    def _count(self, updates):
        with self._changed:
            for update in updates:
                self.delivered += update.count
                self._told = int(update.header[messages.STOP])
            self._in_flight = []

    def _open(self):
        if self._incarnation is None:
            self._incarnation = self._roster.known[self.worker]
        # Several attempts fit into the time after which it is given up.
        deadline = sessions.Deadline(self._timeout / 3)
        self._graph = tf.Graph()
        self._session = sessions.open_session(
            *self._roster.places[self.worker], self._graph, deadline
        )
        self._build_calls()

    def _build_calls(self):
        """Makes callables: of the arrays of a `Packed`, and of nothing."""
        _, job, task = self._roster.places[self.worker]
        length = messages.header_length(self._roster.num_workers)
        header, values, data = self._queue.dtypes
        with (
            self._graph.as_default(),
            tf.device(f"/job:{job}/replica:0/task:{task}/device:CPU:0"),
        ):
            packed = messages.Packed(
                tf.compat.v1.placeholder(header, [None, length]),
                tf.compat.v1.placeholder(tf.int64, [None, 2]),
                tf.compat.v1.placeholder(values, [None]),
                tf.compat.v1.placeholder(data, [None]),
            )
            membership = board.build_membership(self._roster.name)
            done = self._queue.put_if(
                packed,
                tf.equal(membership[0], self._incarnation),
                self._roster.num_workers,
            )
            has_room = self._queue.has_room(self._roster.num_workers)
        make = self._session.make_callable
        self._call = make([done, membership], [*packed], accept_options=True)
        self._ask = make([has_room, membership])

    def _end_session(self):
        session, self._session = self._session, None
        self._call = self._ask = None
        if session is not None:
            sessions.close(session, self._roster.places[self.worker][0])
