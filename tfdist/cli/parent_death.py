"""No process of a cluster outlives its launcher, even one that is killed.

Two small programs, run as `python -I -S parent_death.py MODE ...`:

`exec PARENT COMMAND...` asks the kernel to kill this process when its parent
dies and then becomes COMMAND. That is done here and not in a `preexec_fn`,
which would run Python code in the child of a fork.

`guard MARK` reads `+PGID` and `-PGID` lines and, when its input ends, kills the
process groups that are left. The launcher holds the other end of its input,
so that its death, of whatever kind, is the end of the input. This is for the
processes that a task has started itself: the kernel's signal does not reach
them.

Some of these may be in a session of their own. While the launcher lives it
finds them itself (`descendants.py`). When it has been killed they are
nobody's any more; the guard knows them by their environment, in which tasks
got the MARK (Linux alone). Only one that was given another environment, or
has overwritten it, outlives a launcher that was killed; and so do those of
whose guard was killed as well.
"""

import ctypes
import os
import signal
import sys
import time

MARK = "TFDIST_LAUNCH"
_PR_SET_PDEATHSIG = 1
_MOST_ROUNDS = 500


def exec_command(parent: int, command: list[str]) -> None:
    """Becomes `command`, to be killed when the process `parent` dies."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            number = ctypes.get_errno()
            raise OSError(number, f"prctl: {os.strerror(number)}")
    # The terminal is the launcher's: who reads it gets an error, and is not
    # stopped for ever.
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    if os.getppid() != parent:  # It died before the kernel was asked.
        sys.exit(128 + signal.SIGKILL)
    os.execv(command[0], command)


def guard(mark: str) -> None:
    """Kills the process groups on its list when its input ends.

    And the processes in whose environment `mark` is.
    """
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
    if sys.platform == "linux":
        # More than once: they may be starting others.
        for _ in range(_MOST_ROUNDS):
            if not kill_marked(mark):
                break
            time.sleep(0.01)


def kill_marked(mark: str) -> bool:
    """Kills the processes in whose environment `mark` is.

    Returns:
        Whether there were any.
    """
    variable = f"{MARK}={mark}".encode()
    found = False
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if variable in file.read().split(b"\0"):
                        os.kill(int(name), signal.SIGKILL)
                        found = True
            except OSError:
                pass  # It has ended, or is another user's.
    return found


if __name__ == "__main__":
    if sys.argv[1] == "exec":
        exec_command(int(sys.argv[2]), sys.argv[3:])
    else:
        guard(sys.argv[2])
