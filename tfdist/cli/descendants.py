"""The launcher's processes and theirs, whatever session they are in.

Linux lets a process adopt what its descendants leave behind
(PR_SET_CHILD_SUBREAPER), which else process 1 does: so a child that has taken
a session of its own, or was detached twice, is still to be found below the
launcher when that ends, and ends with it. What the launcher cannot see to
itself, as it is killed, its guard does (`parent_death.py`).
"""

from collections.abc import Container
import contextlib
import ctypes
import os
import pathlib
import signal
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_SECONDS_AFTER_KILL = 5.0


class Descendants(contextlib.AbstractContextManager):
    """Adopts orphans while it lasts, and kills all that is left at its end.

    What was there before, such as the guard, is left alone. Elsewhere than on
    Linux it does nothing.
    """

    def __enter__(self):
        self._spared = set()
        self._was_adopting = True
        if sys.platform == "linux":
            self._spared = _descendants(spared=())
            self._was_adopting = _adopts()
            _set_adopts(True)
        return self

    def __exit__(self, *exc_info):
        if sys.platform == "linux":
            self._kill()
            _set_adopts(self._was_adopting)

    def reap(self, waited_for: Container[int]) -> None:
        """Lets go of adopted processes that have ended.

        Args:
            waited_for: ids of children whose status somebody else asks for.
        """
        if sys.platform != "linux":
            return
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, options)) is not None:
                if ended.si_pid in waited_for:
                    return
                os.waitpid(ended.si_pid, 0)

    def _kill(self) -> None:
        """Kills what is left, and what that leaves behind."""
        end = time.monotonic() + _SECONDS_AFTER_KILL
        while left := _descendants(self._spared):
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self.reap(self._spared)
            if time.monotonic() > end:
                return
            time.sleep(0.01)


def _descendants(spared: Container[int]) -> set[int]:
    """Returns the ids of all processes below this one that run.

    Args:
        spared: ids of processes that are left out, with all below them.
    """
    children: dict[int, list[int]] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # "pid (name) state parent ...", and a name may be anything.
                text = (entry / "stat").read_text(errors="replace")
                state, parent, *_ = text.rpartition(")")[2].split()
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found: set[int] = set()
    new = [os.getpid()]
    while new:
        below = children.get(new.pop(), [])
        new += [pid for pid in below if pid not in spared]
        found.update(new)
    return found


def _adopts() -> bool:
    value = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value))
    return bool(value.value)


def _set_adopts(adopts: bool) -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(adopts))


def _prctl(option: int, argument: object) -> None:
    nothing = ctypes.c_ulong(0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, nothing, nothing, nothing):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl: {os.strerror(number)}")
