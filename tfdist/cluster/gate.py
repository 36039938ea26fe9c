"""Keeps threads off TensorFlow's runtime while it connects anew.

A worker talks to servers in its main thread (training steps) and in threads
of its own (heartbeats, and what is exchanged after `fit`). TensorFlow must not
run anything remote while `experimental_connect_to_cluster` changes what it
knows of the cluster.
"""

import contextlib
import threading
import time


class Gate:
    """Many may be inside, or one alone.

    Attributes:
      here: Thread-local; `here.inside` is true in threads that are inside.
    """

    def __init__(self):
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = False
        self.here = threading.local()

    @property
    def is_inside(self):
        """Whether the calling thread is inside, alone or not."""
        return getattr(self.here, "inside", False)

    @contextlib.contextmanager
    def shared(self):
        """Scope in which nobody is inside alone."""
        if self.is_inside:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._inside += 1
        self.here.inside = True
        try:
            yield
        finally:
            self.here.inside = False
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self, timeout):
        """Scope in which nobody else is inside.

        Args:
          timeout: Seconds to wait for the others to leave.

        Raises:
          TimeoutError: They have not left.
        """
        end = time.monotonic() + timeout
        with self._changed:
            if not self._changed.wait_for(
                lambda: not self._alone, max(0.0, end - time.monotonic())
            ):
                raise TimeoutError("Another thread connects to the servers.")
            self._alone = True
            left = self._changed.wait_for(
                lambda: not self._inside, max(0.0, end - time.monotonic())
            )
            if not left:
                self._alone = False
                self._changed.notify_all()
                raise TimeoutError(
                    f"Gave up after {timeout:g} s waiting for calls of other "
                    "threads to servers to end."
                )
        self.here.inside = True
        try:
            yield
        finally:
            self.here.inside = False
            with self._changed:
                self._alone = False
                self._changed.notify_all()


# A process has one runtime.
gate = Gate()
