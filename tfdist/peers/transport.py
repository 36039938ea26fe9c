"""The way of one channel's messages to all other workers."""

import threading
import time
import weakref

from absl import logging
import tensorflow as tf

from tfdist.compression import cast
from tfdist.peers import backlog
from tfdist.peers import messages
from tfdist.peers import sender

# Messages that a worker's own steps may be ahead of its threads.
_OUTBOX = 64
# Seconds that a thread has to end in, when the process does.
END_SECONDS = 5.0

# All transports of this process.
_all = weakref.WeakSet()


class Transport:
    """A queue that steps put messages in, and threads that send them.

    Args:
      roster: The `Roster`.
      name: Of the channel, the same on all workers.
      codec: The `Codec` of its messages.
      size: Elements of its vector.
      dtype: Its `tf.DType`.
      tolerance: The `FaultTolerance`.
      device: Of this worker.

    Attributes:
      inbox: The `Queue` in which this worker gets messages.
      outbox: The `Queue` of messages that its steps have made.
      senders: List of `PeerSender`, one for each other worker.
    """

    # Seconds between two looks at what steps have made: messages of steps that
    # take less travel together. A call costs both workers about a millisecond
    # of processor time.
    _pace = 0.01

    def __init__(self, roster, name, codec, size, dtype, tolerance, device):
        self._vector = codec, size, dtype
        self.inbox = messages.Queue(
            f"{name}/inbox",
            dtype,
            self._room() + messages.TOGETHER * roster.num_workers,
        )
        self.outbox = messages.Queue(f"{name}/outbox", dtype, _OUTBOX)
        self._device = device
        self._roster = roster
        self._dispatched = 0
        with tf.init_scope(), tf.device(device):
            self.inbox.size()  # Now it is there.
        self._tolerance = tolerance
        self.senders = [self._sender(worker) for worker in roster.others]
        # Those to processes that others have replaced.
        self._retired = []
        self._thread = threading.Thread(target=self._dispatch, daemon=True)
        if self.senders:
            self._thread.start()
            _all.add(self)

    def _room(self):
        """Messages that this worker holds for its next step, int.

        Of a sum, which is as long as the vector, there is one at a time of
        each sender.
        """
        codec, size, dtype = self._vector
        most = size * dtype.size
        if not isinstance(codec, cast.Cast):
            most //= 4
        room = messages.CAPACITY_BYTES // max(most, 1)
        return min(max(room, 2), messages.CAPACITY)

    def _sender(self, worker, since=0, holds=False):
        tolerance, stall = self._tolerance, None
        if tolerance.on_stall != "wait":
            stall = tolerance.stall_timeout
        return sender.PeerSender(
            self._roster,
            worker,
            self.inbox,
            self._make_backlog(holds),
            tolerance.worker_timeout,
            stall,
            since,
        )

    def _make_backlog(self, holds):
        return backlog.Backlog(*self._vector, holds)

    def admit(self, worker, since):
        """Sends to a worker that joins, or to its new process.

        Args:
          worker: Its number.
          since: Number of this worker's last update before.
        """
        place = self._roster.others.index(worker)
        self.senders[place].close()
        self._retired.append(self.senders[place])
        self.senders[place] = self._sender(worker, since, holds=True)

    def release(self, worker, seen):
        """Called when a joiner has numbers; see `PeerSender.release`."""
        self.senders[self._roster.others.index(worker)].release(seen)

    def _dispatch(self):
        # Single operations: a function would cost several times as much.
        with tf.device(self._device):
            handle = self.outbox.handle()
        try:
            self._hand_out_all(handle)
        except BaseException:
            # No step waits for room that nobody makes.
            with tf.device(self._device):
                self.outbox.close()
            raise

    def _hand_out_all(self, handle):
        while True:
            try:
                updates = [self._taken(handle)]
            except (tf.errors.OutOfRangeError, tf.errors.CancelledError):
                return
            more = range(int(self.outbox.size(handle)))
            updates += [self._taken(handle) for _ in more]
            self._hand_out(updates)
            # Up to 64 vectors, while it waits for the next one.
            del updates
            time.sleep(self._pace)

    def _hand_out(self, updates):
        for one in self.senders:
            if its := self._updates_for(one.worker, updates):
                one.put(its)
        self._dispatched = updates[-1].last

    def _taken(self, handle):
        tensors = self.outbox.take(handle)
        return messages.PeerUpdate(*(tensor.numpy() for tensor in tensors))

    def _updates_for(self, worker, updates):
        """Those of a list of `PeerUpdate`s that go to a worker: here all."""
        return updates

    def is_flushed(self, sent):
        """Whether all live workers have taken what was sent.

        Args:
          sent: Number of the last update of this worker's steps.

        Raises:
          RuntimeError: A thread has failed, which has logged why.
        """
        if not self.senders:
            return True
        self.check_threads()
        return self._dispatched == sent and all(
            one.is_idle for one in self.senders
        )

    def check_threads(self):
        """Raises a RuntimeError if a thread has failed; it has logged why."""
        if not all(thread.is_alive() for thread in self._threads()):
            raise RuntimeError("A thread that exchanges messages has failed.")

    def _threads(self):
        return [self._thread, *self.senders]

    def stop(self, number, workers=None):
        """Tells others, by default all, that a call of `fit` is to stop."""
        for one in self.senders:
            if workers is None or one.worker in workers:
                one.stop(number)

    def close(self):
        """Has the threads end.

        The collection of garbage may call this while a graph is built, to
        which operations of this thread would belong.
        """
        if self.senders:
            threading.Thread(target=self._close, daemon=True).start()

    def _close(self):
        for one in self.senders:
            one.close()
        try:
            with tf.device(self._device):
                self.outbox.close()
        except tf.errors.OpError as error:
            logging.info("An outbox was not closed: %s", error)

    def join(self):
        """Waits until the threads have ended."""
        if self.senders:
            self._thread.join(END_SECONDS)
        for one in (*self.senders, *self._retired):
            one.join(END_SECONDS)


def end_all():
    """Ends all threads, when the process ends.

    One that was inside TensorFlow when Python is gone would abort the process.
    """
    for one in list(_all):
        one.close()
    for one in list(_all):
        one.join()
