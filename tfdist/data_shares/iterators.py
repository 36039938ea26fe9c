"""Iterators of data sets that hold nobody up when they end.

TensorFlow 2.21 tunes each pipeline in a thread, which sleeps for up to a
minute. To delete an iterator it wakes that thread, notes that the iterator is
cancelled, and waits for the thread to end. Now and then the thread looks before
that is noted, and sleeps on: who lets go of an iterator that is older than half
a minute, such as Keras after each epoch, waits for the rest of that minute. So
iterators are deleted in a thread of their own.
"""

import atexit
import itertools
import queue
import sys
import threading
import time
import weakref

from absl import logging
import tensorflow as tf

from tfdist import private_tensorflow

# TensorFlow waits for a minute at most.
_LONGEST_SECONDS = 70
# After so many, the end of the process says what it waits for.
_UNSAID_SECONDS = 2
# How long others may hold the handle of an iterator that has ended.
_IN_USE_SECONDS = 10
_POLL_SECONDS = 0.001
# References of `_delete`: its variable, and the argument of `getrefcount`.
_OWN_REFERENCES = 2


def iterate(dataset):
    """Returns an iterator of a data set, which is deleted in the background.

    Args:
      dataset: A `tf.data.Dataset`.
    """
    iterator = iter(dataset)
    handle = private_tensorflow.handle_of_iterator(iterator)
    if handle is not None:
        key = _deleter.keep(handle)
        weakref.finalize(iterator, _deleter.delete, key).atexit = False
    return iterator


class _Deleter:
    """A thread that deletes iterators, one after another."""

    def __init__(self):
        # Keys of iterators that have ended. Garbage may be collected anywhere,
        # also in a call of this queue: it is of the one kind that allows that.
        self._ended = queue.SimpleQueue()
        self._keys = itertools.count()
        # By key. What the process still has at its end is never deleted: the
        # thread has this object as long as there is a process.
        self._handles = {}
        self._lock = threading.Lock()
        self._thread = None
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._is_closed = False

    def keep(self, handle):
        """Keeps an iterator until `delete`; the first time, the thread begins.

        Args:
          handle: Its handle.

        Returns:
          Its key.
        """
        with self._lock:
            key = next(self._keys)
            self._handles[key] = handle
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tfdist-iterators", daemon=True
                )
                self._thread.start()
        return key

    def delete(self, key):
        """Has an iterator deleted, soon.

        Args:
          key: As `keep` gave it.
        """
        self._ended.put(key)

    def close(self):
        """Waits for a deletion that has begun, and begins no more.

        A thread that comes back from TensorFlow when Python has ended would
        end the process with an error.
        """
        self._is_closed = True
        if self._is_idle.wait(_UNSAID_SECONDS):
            return
        logging.warning(
            "Waits for TensorFlow to delete the iterator of a data set, which "
            "takes up to a minute."
        )
        self._is_idle.wait(_LONGEST_SECONDS)

    def _run(self):
        while True:
            key = self._ended.get()
            self._is_idle.clear()
            if not self._is_closed:
                self._delete(key)
            self._is_idle.set()

    def _delete(self, key):
        """Deletes an iterator, in an operation of TensorFlow's.

        A queue of TensorFlow's holds the last reference to it, and is deleted.
        """
        handle = self._handles.pop(key)
        end = time.monotonic() + _IN_USE_SECONDS
        # The iterator, which tells of its end before it lets go of its handle.
        while sys.getrefcount(handle) > _OWN_REFERENCES:
            if time.monotonic() > end:
                return  # Who still has it deletes it.
            time.sleep(_POLL_SECONDS)
        try:
            with tf.device(handle.device):
                last = tf.queue.FIFOQueue(1, [tf.resource], [[]])
                last.enqueue(handle)
            del handle, last
        except tf.errors.OpError as error:
            # It ends with `handle` all the same.
            logging.debug("An iterator was not handed over: %s", error)


_deleter = _Deleter()
# Python calls what is registered first last: what strategies do at the end of
# the process waits for nothing here.
atexit.register(_deleter.close)
