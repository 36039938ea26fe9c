"""The tasks of one cluster from start to end, and what is told about them.

A run goes through the phases RUNNING, ENDING (a task has failed, or the
training is over: the tasks have some time to end by themselves), TERMINATING
(they got SIGTERM) and KILLING (they got SIGKILL), never backwards. The
clusters of several groups do so each for itself.
"""

from collections.abc import Sequence
import dataclasses
import enum
import signal
import time

from tfdist.cli.output import OutputStream
from tfdist.cli.task import Guard
from tfdist.cli.task import Task

_SECONDS_AFTER_KILL = 5.0


class Phase(enum.IntEnum):
    """How far the run of a cluster has come."""

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


class Report:
    """What the user is told, and the exit status that comes of it.

    Attributes:
        status: that of the first failure; `None` before.
    """

    def __init__(self, err: OutputStream):
        """Prepares the report.

        Args:
            err: where the launcher's messages go.
        """
        self.status: int | None = None
        self._err = err

    def say(self, *messages: str) -> None:
        """Writes messages of the launcher."""
        for message in messages:
            self._err.write_line("tfdist", None, message.encode())

    def fail(self, status: int, why: str) -> None:
        """Notes a failure; the first one is the status of all."""
        if self.status is None:
            self.status = status
        self.say(why)


class ClusterRun:
    """Starts the tasks of one cluster, restarts them, and ends them.

    It never waits: who holds it calls `look` when a process may have ended
    or the deadline is over.

    Attributes:
        phase: how far it has come.
        deadline: when the phase ends, in seconds of `time.monotonic`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        out: OutputStream,
        err: OutputStream,
        limits: Limits,
        report: Report,
    ):
        """Prepares the run; `start` starts it.

        Args:
            tasks: the tasks, in the order in which they are started.
            out: where their standard output goes.
            err: where their standard error goes.
            limits: what the run may take.
            report: who is told.
        """
        self.phase = Phase.RUNNING
        self.deadline = float("inf")
        self._tasks = tasks
        self._out, self._err = out, err
        self._limits = limits
        self._report = report
        self._guard: Guard | None = None

    @property
    def running(self) -> list[Task]:
        """The tasks that run."""
        return [task for task in self._tasks if task.is_running]

    @property
    def is_over(self) -> bool:
        """Whether no task runs, or those that do are given up."""
        return self.phase == Phase.ABANDONED or not self.running

    def start(self, guard: Guard) -> None:
        """Starts all tasks.

        Args:
            guard: who kills them if the launcher is killed.
        """
        self._guard = guard
        for task in self._tasks:
            self._start(task)

    def look(self) -> None:
        """Sees to tasks that have ended."""
        for task in self.running:
            status = task.ended()
            if status is not None:
                self._on_end(task, status)

    def look_at_time(self) -> None:
        """Enters the next phase where the time of this one is over."""
        if self.is_over or time.monotonic() < self.deadline:
            return
        if self.phase == Phase.ENDING:
            seconds = self._limits.grace_seconds
            self._report.say(
                f"{self._names()}: not ended by itself in {seconds:g} s"
            )
        self.go_on(Phase(self.phase + 1))

    def end(self) -> None:
        """Gives the tasks of a run that has failed some time to end."""
        if self.phase == Phase.RUNNING:
            seconds = self._limits.grace_seconds
            if self.running:
                self._report.say(f"{self._names()}: {seconds:g} s left to end")
            self.go_on(Phase.ENDING)

    def go_on(self, phase: Phase) -> None:
        """Enters a later phase, or that of now once more.

        Args:
            phase: the phase; an earlier one changes nothing.
        """
        if phase < self.phase:
            return
        self.phase = phase
        if phase == Phase.ENDING:
            self._allow(self._limits.grace_seconds)
        elif phase == Phase.TERMINATING:
            self._signal(signal.SIGTERM, "terminating")
            self._allow(self._limits.terminate_seconds)
        elif phase == Phase.KILLING:
            self._signal(signal.SIGKILL, "killing")
            self._allow(_SECONDS_AFTER_KILL)
        else:
            self._report.say(
                f"{self._names()}: still there after SIGKILL, given up"
            )

    def _start(self, task: Task) -> None:
        try:
            task.start(self._out, self._err, self._guard)
        except OSError as error:
            self._fail(126, f"{task.label} cannot start: {error}")
        else:
            self._report.say(f"{task.label}: pid {task.pid}, {task.address}")

    def _on_end(self, task: Task, status: int) -> None:
        """Decides what the end of a task means."""
        self._report.say(*task.finish(self._guard))
        what = f"{task.label} exited with status {status}"
        if status > 128 and status - 128 in set(signal.Signals):
            name = signal.Signals(status - 128).name
            what = f"{task.label} was ended by {name} (status {status})"
        if self.phase >= Phase.TERMINATING:
            return
        if not status:
            self._report.say(f"{task.label} is done")
        elif (
            self.phase == Phase.RUNNING
            and task.restarts < self._limits.max_restarts
        ):
            task.restarts += 1
            self._report.say(
                f"{what}; restart {task.restarts} of "
                f"{self._limits.max_restarts}"
            )
            self._start(task)
        else:
            self._fail(status, what)
        if self.phase == Phase.RUNNING and all(
            other.is_server for other in self.running
        ):
            self.go_on(Phase.ENDING)

    def _fail(self, status: int, why: str) -> None:
        self._report.fail(status, why)
        self.end()

    def _signal(self, number: int, what: str) -> None:
        if self.running:
            self._report.say(f"{what} {self._names()}")
        for task in self.running:
            task.signal(number)

    def _allow(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds

    def _names(self) -> str:
        return ", ".join(task.label for task in self.running)
