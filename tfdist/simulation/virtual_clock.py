"""Virtual time, as a ledger counts it."""

import numpy as np

from tfdist.synchronization.events import Attendance

# Zero stands for "never" in a `State`: virtual time begins later.
_START_MICROSECONDS = 1_000_000


def microseconds(seconds):
    """Virtual seconds, None for never, as the ledger counts them."""
    if seconds is None:
        return 0
    return _START_MICROSECONDS + int(round(seconds * 1e6))


def seconds(microseconds):
    """The way back."""
    return (microseconds - _START_MICROSECONDS) * 1e-6


def attendance(now, heard, entered):
    """An `Attendance` of virtual seconds, in lists."""
    return Attendance(
        now=microseconds(now),
        heard=[microseconds(time) for time in heard],
        # Who is killed does not say so: it is silent.
        ended=np.zeros(len(heard), np.int64),
        entered=[microseconds(time) for time in entered],
    )
