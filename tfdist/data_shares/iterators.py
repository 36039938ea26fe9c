"""Iterators of data sets that hold nobody up when they end.

TensorFlow 2.21 tunes each pipeline in a thread, which sleeps for up to a
minute. To delete an iterator it wakes that thread, notes that the iterator is
cancelled, and waits for the thread to end. Now and then the thread looks before
that is noted, and sleeps on: who lets go of an iterator that is older than half
a minute, such as Keras after each epoch, waits for the rest of that minute. So
iterators are deleted in a thread of their own.
"""

import atexit
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
        # A list, so that only who deletes it holds the handle.
        held = [handle]
        _deleter.begin(held)
        weakref.finalize(iterator, _deleter.delete, held).atexit = False
    return iterator


class _Deleter:
    """A thread that deletes iterators, one after another."""

    def __init__(self):
        # Garbage may be collected anywhere, also in a call of this queue: it
        # is of the one kind that allows that.
        self._ended = queue.SimpleQueue()
        # By the list's identity. What the process still has at its end is
        # never deleted.
        self._held = {}
        self._lock = threading.Lock()
        self._thread = None
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._is_closed = False

    def begin(self, held):
        """Notes an iterator; the first time, the thread begins.

        Args:
          held: A list of its handle.
        """
        with self._lock:
            self._held[id(held)] = held
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tfdist-iterators", daemon=True
                )
                self._thread.start()

    def delete(self, held):
        """Has an iterator deleted.

        Args:
          held: The list of its handle, the last one that Python has.
        """
        self._ended.put(self._held.pop(id(held)))

    def close(self):
        """Waits for a deletion that has begun, and begins no more.

        A thread that comes back from TensorFlow when Python has ended would
        end the process with an error.
        """
        self._is_closed = True
        if self._is_idle.wait(_UNSAID_SECONDS):
            return
        logging.info(
            "Waits for TensorFlow to delete the iterator of a data set, which "
            "takes up to a minute."
        )
        self._is_idle.wait(_LONGEST_SECONDS)

    def _run(self):
        while True:
            held = self._ended.get()
            self._is_idle.clear()
            if self._is_closed:
                break
            _delete(held)
            self._is_idle.set()
        self._is_idle.set()
        # The process ends: who let go of an iterator now would wait.
        threading.Event().wait()


def _delete(held):
    """Deletes an iterator, in an operation of TensorFlow's.

    A queue of TensorFlow's holds the last reference to it, and is deleted.
    """
    handle = held.pop()
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
