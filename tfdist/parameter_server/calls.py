"""Whether a call that began some time ago is still running."""

import sys
import threading


class Call:
    """A call of a Python function, looked at from another thread.

    Keras tells nobody but its callbacks that `fit` has ended, and a strategy
    has none.

    Args:
      frame: The call's frame, in the current thread.
    """

    def __init__(self, frame):
        # Not the frame, which would keep its model and its data.
        self._frame = id(frame), frame.f_code
        self._thread = threading.get_ident()

    def is_over(self):
        """Whether it has returned or raised."""
        frame = sys._current_frames().get(self._thread)
        while frame is not None:
            if (id(frame), frame.f_code) == self._frame:
                return False
            frame = frame.f_back
        return True
