"""The way of messages that go to one worker each."""

import threading

import numpy as np
import tensorflow as tf

from tfdist.compression import base
from tfdist.peers import backlog
from tfdist.peers import messages
from tfdist.peers import transport

# Seconds between two attempts to handle a message, until the first step ends.
_RETRY_SECONDS = 0.005
_NOBODY = -1


class GossipTransport(transport.Transport):
    """A `Transport` of messages whose headers say to whom they go.

    A worker has at most one request under way and replies to at most one of
    each other worker, so that two messages wait for a receiver at most. What
    comes is handled at once, by a thread.

    Args:
      handle: `weakref.WeakMethod` of `GossipChannel.handle`.
      *args: Of `Transport`.
    """

    # An exchange is a message each way, one after the other.
    _pace = 0.004

    def __init__(self, handle, *args):
        self._handle = handle
        self._handled = threading.Condition()
        self._closes = threading.Event()
        super().__init__(*args)
        self._handler = threading.Thread(target=self._handle_all, daemon=True)
        if self.senders:
            self._handler.start()

    def _room(self):
        # A reply needs room behind messages that wait for it.
        return messages.CAPACITY

    def _make_backlog(self, holds):
        return backlog.UnmergedBacklog(*self._vector, holds)

    def release(self, worker, seen):
        """Drops nothing that waits for a joiner, which has none of it."""

    def _updates_for(self, worker, updates):
        """Those of a list of `PeerUpdate`s that go to a worker."""
        return [u for u in updates if u.header[messages.SEEN] == worker]

    def _handle_all(self):
        with tf.device(self._device):
            queue = self.inbox.handle()
            while True:
                update = self.inbox.take(queue)
                if int(update.header[messages.SENDER]) == _NOBODY:
                    return
                while not (self._closes.is_set() or self._is_handled(update)):
                    self._closes.wait(_RETRY_SECONDS)
                with self._handled:
                    self._handled.notify_all()

    def wait_until(self, condition, seconds):
        """Waits until something is so that messages bring about.

        Args:
          condition: Callable without arguments.
          seconds: After which it waits no longer.
        """
        with self._handled:
            self._handled.wait_for(condition, seconds)

    def _is_handled(self, update):
        # Its channel ends this thread, and must not live on for its sake.
        handle = self._handle()
        try:
            return handle is None or handle(update)
        except tf.errors.CancelledError:
            if self._closes.is_set():  # The outbox is closed.
                return True
            raise

    def _threads(self):
        return [*super()._threads(), self._handler]

    def _close(self):
        self._closes.set()
        super()._close()
        length = messages.header_length(self._roster.num_workers)
        header = np.zeros([length], np.int64)
        header[messages.SENDER] = _NOBODY
        _, values, data = base.nothing(self.inbox.dtypes[1])
        with tf.device(self._device):
            self.inbox.put([header, values, data])

    def join(self):
        """Waits until the threads have ended."""
        super().join()
        if self.senders:
            self._handler.join(transport.END_SECONDS)
