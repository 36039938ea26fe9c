"""Whether a call of `fit` that began some time ago is still running."""

import threading
import weakref

import keras

from tfdist import own_callbacks
from tfdist import private_keras_calls
from tfdist import thread_frames

_lock = threading.Lock()
# All `RunningFit` of this process that `begin` has made.
_begun = weakref.WeakSet()


def begin(frame):
    """Takes note of a call of `fit` that begins.

    Those before it in this thread, within which it is not made, are over,
    whatever is where they were: an exception has ended them, and the frame of
    the new call may have the place of theirs.

    Args:
      frame: The call's frame, in the current thread.

    Returns:
      A `RunningFit`.
    """
    call = RunningFit(frame)
    with _lock:
        for other in list(_begun):
            other.end_before(frame)
        _begun.add(call)
    return call


class RunningFit:
    """A call of `fit`, looked at from another thread.

    Keras tells nobody but its callbacks that `fit` has ended, and a strategy
    has none.

    Args:
      frame: The call's frame, in the current thread.
    """

    def __init__(self, frame):
        # Not the frame, which would keep its model and its data.
        self._frame = id(frame), frame.f_code
        self._thread = threading.get_ident()
        self._is_seen_to = False
        self._is_over = False

    def end_before(self, frame):
        """Called when a call of this thread begins, with its frame."""
        if self._thread == threading.get_ident() and not self.is_around(frame):
            self._is_over = True

    def before_end(self, function):
        """Has a function called when training has ended.

        After all callbacks, in the thread of the call. Not if an exception
        ends it, or in a `fit` of somebody's own that has no callbacks.

        Args:
          function: Callable without arguments; the first one counts.
        """
        if self._is_seen_to:
            return
        self._is_seen_to = True
        # `fit` is what calls this.
        frame = self._found_from(private_keras_calls.current_frame())
        if frame is None:
            return
        callbacks = private_keras_calls.callbacks_of(frame)
        if isinstance(callbacks, keras.callbacks.CallbackList):
            own_callbacks.at_end(callbacks, ["on_train_end"], function)

    def is_over(self):
        """Whether it has returned or raised."""
        return self._is_over or not thread_frames.has(self._thread, self._is_it)

    def is_around(self, frame):
        """Whether `frame` is of a call that was made within this one.

        A frame that is no more may have had the same place in memory.
        """
        return not self._is_over and self._found_from(frame.f_back) is not None

    def _found_from(self, frame):
        """The call's frame, where it is `frame` or called it; else None."""
        while frame is not None and not self._is_it(frame):
            frame = frame.f_back
        return frame

    def _is_it(self, frame):
        return (id(frame), frame.f_code) == self._frame


class CallNumbers:
    """Numbers of the calls of `fit`, from 1, the same on all workers.

    One that raises before its first step is none: the next one of this worker
    is the one that others make then.
    """

    def __init__(self):
        self._begun = 0
        # Those that have not taken their first step, outer ones first.
        self._waiting = []

    def next(self, running):
        """Returns the number of a call that asks for its data.

        Args:
          running: Its `RunningFit`.
        """
        self._waiting = [one for one in self._waiting if not one.is_over()]
        self._waiting.append(running)
        return self._begun + len(self._waiting)

    def begin(self, running):
        """Called before each step of a call: the first one counts.

        Args:
          running: Its `RunningFit`.
        """
        if running in self._waiting:
            self._waiting.remove(running)
            self._begun += 1
