"""Runs the processes of all clusters from start to end, in one thread.

One thread with one `poll` sees to output, deaths, signals and deadlines, so
there is nothing to lock, and the kernel ties each task's life to the thread
that started it (`parent_death.py`). What the death of a task means for the
others of its cluster is decided in `cluster_run.py`; what ends all clusters is
here.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import json
import select
import signal
import socket
import time

from tfdist.cli import control_socket
from tfdist.cli import launched_status
from tfdist.cli.cluster_run import ClusterRun
from tfdist.cli.cluster_run import RunPhase
from tfdist.cli.descendants import Descendants
from tfdist.cli.limits import Limits
from tfdist.cli.output import OutputStream
from tfdist.cli.run_report import RunReport
from tfdist.cli.task import Guard
from tfdist.cli.task import Task

TIMEOUT_STATUS = 124
"""The exit status when time is up, as that of `timeout(1)`."""

SECONDS_TOGETHER = 0.5
"""Signals within so many seconds are one: `timeout(1)` sends each twice, to
its child and to its process group."""

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SECONDS_FOR_LAST_OUTPUT = 2.0
# What `poll` takes.
_MOST_MILLISECONDS = 2**31 - 1


class Supervisor:
    """Starts tasks, passes their output on, and ends them all."""

    def __init__(
        self,
        clusters: Sequence[Sequence[Task]],
        out: OutputStream,
        err: OutputStream,
        limits: Limits,
        log_dir: str | None = None,
        status_seconds: float = 0.0,
    ):
        """Prepares a run.

        Args:
            clusters: the tasks of each cluster, in the order in which they
                are started. Clusters do not depend on each other: when a
                task of one fails, the others go on.
            out: where standard output goes.
            err: where standard error and the launcher's messages go.
            limits: what the run may take.
            log_dir: where the tasks' output can be read afterwards.
            status_seconds: between two lines about the workers; 0 for none.
        """
        self._log_dir = log_dir
        self._out, self._err = out, err
        self._limits = limits
        self._report = RunReport(err)
        self._clusters = [
            ClusterRun(tasks, out, err, limits, self._report)
            for tasks in clusters
        ]
        self._tasks = clusters
        self._status = launched_status.StatusLines(
            clusters, status_seconds, self._report.say
        )
        self._end_of_time = float("inf")
        # When another signal is another one, in seconds of `time.monotonic`.
        self._next_signal = 0.0
        self._control: control_socket.ControlSocket | None = None

    def run(self) -> int:
        """Runs the tasks.

        Returns:
            The exit status: 0, or that of the first task that failed (128 +
            n where signal n ended it), or 128 + n where signal n ended the
            launcher, or `TIMEOUT_STATUS`.
        """
        if self._limits.timeout:
            self._end_of_time = time.monotonic() + self._limits.timeout
        with contextlib.ExitStack() as stack:
            wakeups = stack.enter_context(_signals())
            guard = stack.enter_context(Guard())
            descendants = stack.enter_context(Descendants())
            stack.callback(self._kill_what_is_left)
            try:
                self._control = stack.enter_context(
                    control_socket.ControlSocket()
                )
            except OSError as error:
                self._report.say(
                    f"`tfdist scale` and `top` cannot reach this: {error}"
                )
            for cluster in self._clusters:
                cluster.start(guard)
            while not all(cluster.is_over for cluster in self._clusters):
                self._poll(wakeups)
                for cluster in self._clusters:
                    cluster.look()
                descendants.reap([task.pid for task in self._running()])
                self._on_time()
            if self._report.status is not None:
                # The last line: what went before has scrolled away.
                self._report.say(f"ended: {self._report.first_failure}")
            self._flush(wakeups)
        return self._report.status or 0

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
        if self._control is not None:
            poll.register(self._control, select.POLLIN)
        wait = self._next_deadline() - time.monotonic()
        milliseconds = None
        if wait != float("inf"):
            milliseconds = min(max(0, int(wait * 1000) + 1), _MOST_MILLISECONDS)
        for descriptor, _ in poll.poll(milliseconds):
            if descriptor == wakeups.fileno():
                self._on_signals(wakeups.recv(4096))
            elif self._control and descriptor == self._control.fileno():
                self._control.answer(self._on_question)
            elif descriptor in readers:
                self._report.say(*readers[descriptor].read(descriptor))
        self._write()
        for stream in (self._out, self._err):
            if stream.is_broken and not self._is_terminating():
                # As for any program whose output nobody reads any more.
                self._end_all(128 + signal.SIGPIPE, "nobody reads the output")

    def _write(self) -> None:
        """Writes what streams take, and to the other one if one loses lines."""
        pairs = (self._out, self._err), (self._err, self._out)
        for stream, other in pairs:
            if note := stream.flush():
                other.write_line("tfdist", None, note.encode())

    def _running(self) -> list[Task]:
        return [task for run in self._clusters for task in run.running]

    def _is_terminating(self) -> bool:
        """Whether every cluster has come to SIGTERM or further."""
        return all(run.phase >= RunPhase.TERMINATING for run in self._clusters)

    def _next_deadline(self) -> float:
        left = [run for run in self._clusters if not run.is_over]
        deadlines = [run.next_time for run in left]
        if any(run.phase == RunPhase.RUNNING for run in left):
            deadlines += [self._end_of_time, self._status.due]
        return min(deadlines)

    def _on_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number not in _ENDING_SIGNALS:
                continue  # SIGCHLD: the loop asks every task anyway.
            name = signal.Signals(number).name
            now = time.monotonic()
            if now < self._next_signal:
                self._report.say(f"got {name}, at once with the one before")
                continue
            self._next_signal = now + SECONDS_TOGETHER
            if not self._is_terminating():
                self._end_all(128 + number, f"got {name}")
                self._report.say(
                    "tasks end after their step, in "
                    f"{self._limits.terminate_seconds:g} s at most; the same "
                    "signal again ends them at once"
                )
            else:
                self._report.say(f"got {name} again")
                for cluster in self._clusters:
                    cluster.go_on(RunPhase.KILLING)

    def _on_question(self, question: Mapping) -> str:
        """Answers `tfdist scale` and `tfdist top`."""
        if question.get("status"):
            found = map(launched_status.readings, self._tasks)
            return json.dumps(
                [[dataclasses.asdict(one) for one in group] for group in found]
            )
        workers = question.get("workers")
        if isinstance(workers, bool) or not isinstance(workers, int):
            raise control_socket.RefusedError(
                "Argument `workers` must be an integer. Received: "
                f"workers={workers!r}"
            )
        left = [run for run in self._clusters if not run.is_over]
        for cluster in left:
            cluster.check_scale(workers)
        return "; ".join(cluster.scale(workers) for cluster in left)

    def _on_time(self) -> None:
        if time.monotonic() >= self._end_of_time and any(
            run.phase == RunPhase.RUNNING for run in self._clusters
        ):
            seconds = self._limits.timeout
            self._end_all(TIMEOUT_STATUS, f"not done after {seconds:g} s")
            return
        for cluster in self._clusters:
            cluster.look_at_time()
        if not self._is_terminating():
            self._status.look_at_time()

    def _end_all(self, status: int, why: str) -> None:
        """Ends all clusters, whatever they do."""
        self._report.fail(status, why, self._log_dir)
        for cluster in self._clusters:
            if cluster.phase < RunPhase.TERMINATING:
                cluster.go_on(RunPhase.TERMINATING)

    def _flush(self, wakeups: socket.socket) -> None:
        """Writes the last output; after a failure only for a short time."""
        end = time.monotonic() + _SECONDS_FOR_LAST_OUTPUT
        while self._out.is_pending or self._err.is_pending:
            poll = select.poll()
            poll.register(wakeups, select.POLLIN)
            self._write()
            for stream in (self._out, self._err):
                if stream.is_pending:
                    poll.register(stream, select.POLLOUT)
            if self._report.status is not None and time.monotonic() > end:
                return
            for descriptor, _ in poll.poll(100):
                if descriptor == wakeups.fileno():
                    self._on_signals(wakeups.recv(4096))

    def _kill_what_is_left(self) -> None:
        for task in self._running():
            task.kill()


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
