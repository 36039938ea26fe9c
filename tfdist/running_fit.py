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


def end(frame):
    """Takes note that a call of `fit` has come to its end.

    Args:
      frame: The current one, within the call.
    """
    with _lock:
        calls = list(_begun)
    while frame is not None:
        for call in calls:
            if call.is_frame(frame):
                call.has_ended = True
                return
        frame = frame.f_back


class RunningFit:
    """A call of `fit`, looked at from another thread.

    Keras tells nobody but its callbacks that `fit` has ended, and a strategy
    has none.

    Args:
      frame: The call's frame, in the current thread.

    Attributes:
      has_ended: Whether it has come to its end, or has no epoch from the
        first; where an exception ends it, it has not.
    """

    def __init__(self, frame):
        # Not the frame, which would keep its model and its data.
        self._frame = id(frame), frame.f_code
        self._thread = threading.get_ident()
        self._is_seen_to = False
        self._is_over = False
        self.has_ended = not private_keras_calls.has_epochs(frame)

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

    def is_frame(self, frame):
        """Whether `frame` is the call's, and not of a later one in its place.

        Args:
          frame: A frame that is on the stack.
        """
        return not self._is_over and self._is_it(frame)

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
    is the one that others make then. One that ends without a step, as it was
    resumed at its end, is one: others took its steps, or this worker in an
    earlier process.
    """

    def __init__(self):
        self._begun = 0
        # Those that have not taken their first step, outer ones first.
        self._waiting = []

    def next(self, running, at_once=False):
        """Returns the number of a call that asks for its data.

        Args:
          running: Its `RunningFit`.
          at_once: Whether it counts already, as nobody sees its first step.
        """
        self._settle()
        self._waiting.append(running)
        number = self._begun + len(self._waiting)
        if at_once:
            self.begin()
        return number

    def begin(self):
        """Called before each step: of the innermost call the first one counts.

        One that has begun may be within one that has not, as a callback makes
        it in `on_train_begin`: it is not there any more.
        """
        self._settle()
        if self._waiting:
            self._waiting.pop()
            self._begun += 1

    def _settle(self):
        """Removes those that have ended, or were ended by an exception."""
        for call in [*self._waiting]:
            if call.has_ended or call.is_over():
                self._waiting.remove(call)
                self._begun += call.has_ended
