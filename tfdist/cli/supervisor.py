"""Runs the processes of a cluster from start to end, in one thread.

The run goes through the phases RUNNING, ENDING (a task has failed, or the
training is over: the tasks have some time to end by themselves), TERMINATING
(they got SIGTERM) and KILLING (they got SIGKILL), never backwards. One thread
with one `poll` sees to output, deaths, signals and deadlines, so there is
nothing to lock, and the kernel ties each task's life to the thread that
started it (`lifeline.py`).
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import enum
import select
import signal
import socket
import time

from tfdist.cli.output import OutputStream
from tfdist.cli.task import Guard
from tfdist.cli.task import Task

TIMEOUT_STATUS = 124
"""The exit status when time is up, as that of `timeout(1)`."""

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SECONDS_AFTER_KILL = 5.0
_SECONDS_FOR_LAST_OUTPUT = 2.0


class Phase(enum.IntEnum):
    """How far the run has come."""

    RUNNING = 0
    ENDING = 1
    TERMINATING = 2
    KILLING = 3
    ABANDONED = 4


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a run may take.

    Attributes:
        max_restarts: how often each task that fails is started again.
        grace_seconds: how long tasks may end by themselves.
        terminate_seconds: how long they have between SIGTERM and SIGKILL.
        timeout: seconds for the whole run; 0 for no limit.
    """

    max_restarts: int = 0
    grace_seconds: float = 10.0
    terminate_seconds: float = 5.0
    timeout: float = 0.0


class Supervisor:
    """Starts tasks, passes their output on, and ends them all."""

    def __init__(
        self,
        tasks: Sequence[Task],
        out: OutputStream,
        err: OutputStream,
        limits: Limits,
    ):
        """Prepares a run.

        Args:
            tasks: the tasks, in the order in which they are started.
            out: where standard output goes.
            err: where standard error and the launcher's messages go.
            limits: what the run may take.
        """
        self._tasks = tasks
        self._out, self._err = out, err
        self._limits = limits
        self._phase = Phase.RUNNING
        self._deadline = float("inf")
        self._status: int | None = None

    def run(self) -> int:
        """Runs the tasks.

        Returns:
            The exit status: 0, or that of the first task that failed (128 +
            n where signal n ended it), or 128 + n where signal n ended the
            launcher, or `TIMEOUT_STATUS`.
        """
        if self._limits.timeout:
            self._deadline = time.monotonic() + self._limits.timeout
        with contextlib.ExitStack() as stack:
            wakeups = stack.enter_context(_signals())
            self._guard = stack.enter_context(Guard())
            stack.callback(self._kill_what_is_left)
            for task in self._tasks:
                self._start(task)
            while self._running() and self._phase < Phase.ABANDONED:
                self._poll(wakeups)
                for task in self._running():
                    status = task.ended()
                    if status is not None:
                        self._on_end(task, status)
                self._on_time(time.monotonic())
            self._flush(wakeups)
        return self._status or 0

    def _running(self) -> list[Task]:
        return [task for task in self._tasks if task.is_running]

    def _start(self, task: Task) -> None:
        try:
            task.start(self._out, self._err, self._guard)
        except OSError as error:
            self._fail(126, f"{task.label} cannot start: {error}")
        else:
            self._say(f"{task.label}: pid {task.pid}, {task.address}")

    def _poll(self, wakeups: socket.socket) -> None:
        """Waits for something to do and does what concerns streams."""
        poll = select.poll()
        poll.register(wakeups, select.POLLIN)
        readers = {}
        if not (self._out.is_full or self._err.is_full):
            for task in self._running():
                readers.update((fd, task) for fd in task.descriptors)
        for descriptor in readers:
            poll.register(descriptor, select.POLLIN)
        for stream in (self._out, self._err):
            if stream.is_pending:
                poll.register(stream, select.POLLOUT)
        wait = self._deadline - time.monotonic()
        milliseconds = None
        if wait != float("inf"):
            milliseconds = max(0, int(wait * 1000) + 1)
        for descriptor, _ in poll.poll(milliseconds):
            if descriptor == wakeups.fileno():
                self._on_signals(wakeups.recv(4096))
            elif descriptor in readers:
                self._on_notes(readers[descriptor].read(descriptor))
        for stream in (self._out, self._err):
            stream.flush()
            if stream.is_broken and self._phase < Phase.TERMINATING:
                # As for any program whose output nobody reads any more.
                self._fail(128 + signal.SIGPIPE, "nobody reads the output")
                self._go_on(Phase.TERMINATING)

    def _on_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number not in _ENDING_SIGNALS:
                continue  # SIGCHLD: the loop asks every task anyway.
            name = signal.Signals(number).name
            if self._phase < Phase.TERMINATING:
                self._fail(128 + number, f"got {name}")
                self._go_on(Phase.TERMINATING)
            else:
                self._say(f"got {name} again")
                self._go_on(Phase.KILLING)

    def _on_end(self, task: Task, status: int) -> None:
        """Decides what the end of a task means."""
        self._on_notes(task.finish(self._guard))
        what = f"{task.label} exited with status {status}"
        if status > 128 and status - 128 in set(signal.Signals):
            name = signal.Signals(status - 128).name
            what = f"{task.label} was ended by {name} (status {status})"
        if self._phase >= Phase.TERMINATING:
            return
        if not status:
            self._say(f"{task.label} is done")
        elif (
            self._phase == Phase.RUNNING
            and task.restarts < self._limits.max_restarts
        ):
            task.restarts += 1
            self._say(
                f"{what}; restart {task.restarts} of "
                f"{self._limits.max_restarts}"
            )
            self._start(task)
        else:
            self._fail(status, what)
        if self._phase == Phase.RUNNING and all(
            other.is_server for other in self._running()
        ):
            self._go_on(Phase.ENDING)

    def _on_time(self, now: float) -> None:
        if now < self._deadline:
            return
        if self._phase == Phase.RUNNING:
            seconds = self._limits.timeout
            self._fail(TIMEOUT_STATUS, f"not done after {seconds:g} s")
            self._go_on(Phase.TERMINATING)
        else:
            if self._phase == Phase.ENDING:
                names = ", ".join(task.label for task in self._running())
                seconds = self._limits.grace_seconds
                self._say(f"{names}: not ended by itself in {seconds:g} s")
            self._go_on(Phase(self._phase + 1))

    def _fail(self, status: int, why: str) -> None:
        """Notes a failure; the first one is the status of the run."""
        if self._status is None:
            self._status = status
        self._say(why)
        if self._phase == Phase.RUNNING:
            self._go_on(Phase.ENDING)

    def _go_on(self, phase: Phase) -> None:
        """Enters a later phase."""
        self._phase = phase
        running = self._running()
        names = ", ".join(task.label for task in running)
        if phase == Phase.ENDING:
            seconds = self._limits.grace_seconds
            if running and self._status is not None:
                self._say(f"{names}: {seconds:g} s left to end")
        elif phase == Phase.TERMINATING:
            seconds = self._limits.terminate_seconds
            if running:
                self._say(f"terminating {names}")
        elif phase == Phase.KILLING:
            seconds = _SECONDS_AFTER_KILL
            if running:
                self._say(f"killing {names}")
        else:
            seconds = 0.0
            self._say(f"{names}: still there after SIGKILL, given up")
        self._deadline = time.monotonic() + seconds
        number = {
            Phase.TERMINATING: signal.SIGTERM,
            Phase.KILLING: signal.SIGKILL,
        }.get(phase)
        if number:
            for task in running:
                task.signal(number)

    def _on_notes(self, notes: list[str]) -> None:
        for note in notes:
            self._say(note)

    def _say(self, message: str) -> None:
        self._err.write_line("tfdist", None, message.encode())

    def _flush(self, wakeups: socket.socket) -> None:
        """Writes the last output; after a failure only for a short time."""
        end = time.monotonic() + _SECONDS_FOR_LAST_OUTPUT
        while self._out.is_pending or self._err.is_pending:
            poll = select.poll()
            poll.register(wakeups, select.POLLIN)
            for stream in (self._out, self._err):
                stream.flush()
                if stream.is_pending:
                    poll.register(stream, select.POLLOUT)
            if self._status is not None and time.monotonic() > end:
                return
            for descriptor, _ in poll.poll(100):
                if descriptor == wakeups.fileno():
                    self._on_signals(wakeups.recv(4096))

    def _kill_what_is_left(self) -> None:
        for task in self._running():
            task.signal(signal.SIGKILL)


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    """Yields a socket that gets the number of each signal that arrives.

    What the launcher was told to ignore (`nohup`) stays ignored.
    """
    reader, writer = socket.socketpair()
    previous = {}
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        wakeup = signal.set_wakeup_fd(
            writer.fileno(), warn_on_full_buffer=False
        )
        try:
            for number in (signal.SIGCHLD, *_ENDING_SIGNALS):
                handler = signal.getsignal(number)
                if handler != signal.SIG_IGN or number == signal.SIGCHLD:
                    previous[number] = handler
                    signal.signal(number, lambda *_: None)
            yield reader
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler or signal.SIG_DFL)
            signal.set_wakeup_fd(wakeup)
