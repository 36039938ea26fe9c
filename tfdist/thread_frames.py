"""Frames of other threads, which go on while one looks at them.

Python 3.11 makes the objects of a thread's frames when they are asked for. If
that starts a collection of garbage, what is collected may let the other thread
run on, and the object is made of a frame that is gone: Python crashes. So
nothing is collected meanwhile.

A generator that yields meanwhile has no caller any more, and the calls around
it are not seen. So where a look ends with a generator, there is another one.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import gc
import inspect
import sys
import traceback
from types import FrameType

_GENERATOR = (
    inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
)
# Far more than are needed: one in thousands ends too early.
_LOOKS = 100


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def has(thread: int, is_it: Callable[[FrameType], bool]) -> bool:
    """Whether a thread is in a call of a kind.

    Args:
      thread: Its `threading.get_ident()`; one that has ended is in none.
      is_it: Callable of a frame.
    """
    for _ in range(_LOOKS):
        outermost = None
        with _no_collection():
            frame = sys._current_frames().get(thread)
            while frame is not None and not is_it(frame):
                outermost, frame = frame, frame.f_back
        if frame is not None:
            return True
        if outermost is None or not outermost.f_code.co_flags & _GENERATOR:
            return False
    return False


def stack(thread: int) -> str:
    """The calls that a thread is in, as a traceback; "" if it has ended.

    Args:
      thread: Its `threading.get_ident()`.
    """
    with _no_collection():
        frame = sys._current_frames().get(thread)
        return "".join(traceback.format_stack(frame)) if frame else ""
