"""A launcher in a process of its own, watched with bounded waits only."""

import contextlib
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import psutil

from tests.waits import SECONDS
from tests.waits import Waited
from tests.waits import wait_for_exit
from tests.waits import wait_until

ROOT = pathlib.Path(__file__).parents[2]


class Launched:
    """`tfdist launch` with the given arguments; use as a context.

    It shows what all tasks write, unless the arguments say other.
    """

    def __init__(self, *arguments, env=None, **popen):
        environ = {
            name: value
            for name, value in os.environ.items()
            if name not in ("TF_CONFIG", "NO_COLOR")
        }
        environ["PYTHONPATH"] = str(ROOT)
        self.tmp = environ["TMPDIR"] = tempfile.mkdtemp()
        command = [sys.executable, "-m", "tfdist", "launch", "--show=all"]
        with default_signals():
            self.process = subprocess.Popen(
                [*command, *map(str, arguments)],
                stdout=popen.pop("stdout", subprocess.PIPE),
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**environ, **(env or {})},
                **popen,
            )
        self.lines = []
        self._queue = queue.Queue()
        if self.process.stdout:
            threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.process.kill()
        self.process.wait(SECONDS)
        shutil.rmtree(self.tmp)

    def expect(self, pattern):
        """Returns the match of the next line that matches."""
        end = time.monotonic() + SECONDS
        while True:
            line = self._next_line(end, pattern)
            assert line is not None, f"no {pattern!r} in {self.lines}"
            self.lines.append(line)
            if match := re.search(pattern, line):
                return match

    def _next_line(self, end, what):
        """Returns the next line, or `None` after the last."""
        try:
            return self._queue.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            raise Waited(
                f"no {what!r} in {SECONDS:g} s in {self.lines}"
            ) from None

    def finish(self):
        """Returns the exit status, and all output."""
        status = wait_for_exit(self.process)
        end = time.monotonic() + SECONDS
        while (line := self._next_line(end, "end of output")) is not None:
            self.lines.append(line)
        return status, "\n".join(self.lines)

    def descendants(self):
        """Returns the processes that it has started, and theirs."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def _read(self):
        with self.process.stdout as stream:
            for line in stream:
                self._queue.put(line.decode("utf-8", "replace").rstrip("\n"))
        self._queue.put(None)


@contextlib.contextmanager
def default_signals():
    """Scope in which processes start that take signals as by default.

    A shell that starts the tests in the background lets them ignore some, and
    what is ignored is inherited. A handler is not, and this one ignores, too.
    """
    ignored = [
        number
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) == signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def assert_gone(processes):
    """Waits until none of the processes runs any more."""
    wait_until(
        lambda: not any(map(runs, processes)),
        lambda: f"{[one for one in processes if runs(one)]} have ended",
    )


def runs(process):
    """Returns whether a process runs; one that nobody reaps does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
