"""Ctrl-C during what all workers do together.

TensorFlow waits for other workers in calls that Ctrl-C does not end: Python
raises `KeyboardInterrupt` when such a call returns. What comes after it, as the
update that the others have made as well, would be left out on this worker.
"""

import contextlib
import signal
import threading


@contextlib.contextmanager
def deferred():
    """Scope at whose end Ctrl-C takes effect, not within it.

    It is for calls of TensorFlow and what belongs to them. A wait in Python,
    which Ctrl-C ends, has no place in it.
    """
    # Python has signals in the main thread alone.
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not is_main or before is None:
        yield
        return
    noted = []
    signal.signal(signal.SIGINT, lambda *_: noted.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if noted:
            signal.raise_signal(signal.SIGINT)
