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

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 60.0


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
            try:
                line = self._queue.get(timeout=end - time.monotonic())
            except (queue.Empty, ValueError):
                line = None
            assert line is not None, f"no {pattern!r} in {self.lines}"
            self.lines.append(line)
            if match := re.search(pattern, line):
                return match

    def finish(self):
        """Returns the exit status, and all output."""
        status = self.process.wait(SECONDS)
        while (line := self._queue.get(timeout=SECONDS)) is not None:
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
    end = time.monotonic() + SECONDS
    while left := [process for process in processes if runs(process)]:
        assert time.monotonic() < end, left
        time.sleep(0.01)


def runs(process):
    """Returns whether a process runs; one that nobody reaps does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
