"""A process that has imported TensorFlow once and forks the tasks of a cluster.

Importing TensorFlow and Keras costs seconds of processor time; a fork costs
milliseconds. It is safe as long as nothing here touches TensorFlow's runtime:
until a context is initialised TensorFlow has no threads, locks or channels of
its own. A forked task runs its target as a script would and ends as a script
does, `atexit` included.

Requests come as lines of JSON on the standard input; what became of them goes
as lines of JSON to the standard output. The kernel kills the tasks when this
process dies, and this process when its parent does.
"""

import ctypes
import faulthandler
import gc
import importlib
import json
import os
import pathlib
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1
_ROOT = pathlib.Path(__file__).parents[2]


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when the process `parent` dies."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def serve(requests: int, answers: int) -> dict | None:
    """Forks a task for each request until the requests end.

    Args:
        requests: file descriptor to read from.
        answers: file descriptor to write to.

    Returns:
        In a task: what is asked of it. Here: `None`, when it is over.
    """
    woken, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)

    def answer(**content):
        os.write(answers, json.dumps(content).encode() + b"\n")

    me = os.getpid()
    keys = {}
    rest = b""
    answer(ready=True)
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            for pid, status in _ended():
                answer(key=keys.pop(pid), status=status)
        if requests not in ready:
            continue
        data = os.read(requests, 65536)
        if not data:
            return None
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                die_with_parent(me)
                for descriptor in (requests, answers, woken, wakeup):
                    os.close(descriptor)
                return request
            keys[pid] = request["key"]
            answer(key=request["key"], pid=pid)


def _ended():
    """Pids and statuses (negative for a signal) of tasks that have ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def become(request: dict) -> None:
    """Runs a task: `module:function` with keyword arguments."""
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    faulthandler.enable()
    os.environ.update(request["environ"])
    os.chdir(request["directory"])
    module, function = request["target"].split(":")
    getattr(importlib.import_module(module), function)(**request["arguments"])


def main() -> None:
    """Imports what tasks need, forks them, or is one of them."""
    die_with_parent(int(sys.argv[1]))
    # Answers keep the real standard output, whatever imports print.
    requests, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    sys.path.insert(0, str(_ROOT))
    # No thread of a numerical library may be lost in a fork.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ["PYTHONUNBUFFERED"] = "1"
    importlib.import_module("tfdist")
    importlib.import_module("keras")
    # What is imported is no garbage: collecting it once more at the end of
    # each task would cost half a second and a copy of all its pages.
    gc.freeze()
    sys.stdout.reconfigure(line_buffering=True)
    request = serve(requests, answers)
    if request is not None:
        become(request)


if __name__ == "__main__":
    main()
