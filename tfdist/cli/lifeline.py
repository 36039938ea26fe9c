"""No process of a cluster outlives its launcher, even one that is killed.

Two small programs, run as `python -I -S lifeline.py MODE ...`:

`exec PARENT COMMAND...` asks the kernel to kill this process when its parent
dies and then becomes COMMAND. That is done here and not in a `preexec_fn`,
which would run Python code in the child of a fork.

`guard` reads `+PGID` and `-PGID` lines and, when its input ends, kills the
process groups that are left. The launcher holds the other end of its input,
so that its death, of whatever kind, is the end of the input. This is for the
processes that a task has started itself: the kernel's signal does not reach
them.

What a task detaches on purpose, by a session of its own, is not followed.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def exec_command(parent: int, command: list[str]) -> None:
    """Becomes `command`, to be killed when the process `parent` dies."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            number = ctypes.get_errno()
            raise OSError(number, f"prctl: {os.strerror(number)}")
    if os.getppid() != parent:  # It died before the kernel was asked.
        sys.exit(128 + signal.SIGKILL)
    os.execv(command[0], command)


def guard() -> None:
    """Kills the process groups on its list when its input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


if __name__ == "__main__":
    if sys.argv[1] == "exec":
        exec_command(int(sys.argv[2]), sys.argv[3:])
    else:
        guard()
