"""The tasks of one cluster from start to end, and what is told about them.

A run goes through the phases RUNNING, ENDING (a task has failed, or the
training is over: the tasks have some time to end by themselves), TERMINATING
(they got SIGTERM; servers when nobody needs them any more) and KILLING (they
got SIGKILL), never backwards. The clusters of several groups do so each for
itself.
"""

import collections
from collections.abc import Sequence
import enum
import signal
import time
from typing import NamedTuple

from tfdist.cli import run_report
from tfdist.cli.control_socket import RefusedError
from tfdist.cli.failure import Cause
from tfdist.cli.limits import Limits
from tfdist.cli.output import OutputStream
from tfdist.cli.run_report import RunReport
from tfdist.cli.task import Guard
from tfdist.cli.task import Task

_SECONDS_AFTER_KILL = 5.0
# Before the first restart of a task; twice as long before each further one.
_SECONDS_BEFORE_RESTART = 0.5
_MOST_SECONDS_BEFORE_RESTART = 30.0
_EXCUSED_PER_RESTART = 4
# Between two lines that say what is waited for.
_REPORT_SECONDS = 5.0
# Of the time to terminate: after that servers are told, too.
_WORKERS_PART = 0.75


class RunPhase(enum.IntEnum):
    """Progress of the run of a cluster."""

    RUNNING = 0
    ENDING = 1
    TERMINATING = 2
    KILLING = 3
    ABANDONED = 4


class Restart(NamedTuple):
    """A task that is about to be started again.

    Attributes:
        when: the moment, in seconds of `time.monotonic`.
        status: with which it has ended.
        what: how it has ended, for the user.
    """

    when: float
    status: int
    what: str


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
        report: RunReport,
    ):
        """Prepares the run; `start` starts it.

        Args:
            tasks: the tasks, in the order in which they are started.
            out: where their standard output goes.
            err: where their standard error goes.
            limits: what the run may take.
            report: who is told.
        """
        self.phase = RunPhase.RUNNING
        self.deadline = float("inf")
        self._tasks = tasks
        self._out, self._err = out, err
        self._limits = limits
        self._report = report
        self._guard: Guard | None = None
        self._restarts: dict[Task, Restart] = {}
        # When those that were told to leave are killed, in seconds of
        # `time.monotonic`.
        self._leaving: dict[Task, float] = {}
        # Restarts of tasks that failed because another one had.
        self._excused: collections.Counter[Task] = collections.Counter()
        self._has_failed = False
        # When servers are told to end, and when what is waited for is said
        # again, in seconds of `time.monotonic`.
        self._servers_due = self._report_due = float("inf")

    @property
    def running(self) -> list[Task]:
        """The tasks that run."""
        return [task for task in self._tasks if task.is_running]

    @property
    def _places(self) -> list[Task]:
        return [task for task in self._tasks if task.worker is not None]

    @property
    def _remaining(self) -> list[Task]:
        """The tasks that run, or will again, and are no servers."""
        return [t for t in (*self.running, *self._restarts) if not t.is_server]

    @property
    def is_over(self) -> bool:
        """Whether no task runs or will, or those that do are given up."""
        return self.phase == RunPhase.ABANDONED or not (
            self.running or self._restarts
        )

    @property
    def next_time(self) -> float:
        """Moment at which `look_at_time` is due, by `time.monotonic`."""
        return min(
            [
                self.deadline,
                self._servers_due,
                self._report_due,
                *(restart.when for restart in self._restarts.values()),
                *self._leaving.values(),
            ]
        )

    def start(self, guard: Guard) -> None:
        """Starts all tasks that are wanted.

        Args:
            guard: who kills them if the launcher is killed.
        """
        self._guard = guard
        for task in self._tasks:
            if task.is_wanted:
                self._start(task)

    def check_scale(self, workers: int) -> None:
        """Refuses what `scale` cannot do.

        Args:
            workers: how many are to run: the first ones.

        Raises:
            RefusedError: if there are not so many, the run is ending, or
                there are no servers: then one worker's end ends the others.
        """
        if not any(task.is_server for task in self._tasks):
            raise RefusedError(
                "Flag --workers must not be given where the launcher has no "
                "parameter servers (--num_ps=0): their workers do not come "
                f"and go. Received: --workers={workers}."
            )
        least, most = self._limits.min_workers, len(self._places)
        if not least <= workers <= most:
            raise RefusedError(
                f"Flag --workers must be from {least} to {most} "
                f"(--max_workers of the launcher). Received: "
                f"--workers={workers}."
            )
        if self.phase != RunPhase.RUNNING:
            raise RefusedError("The run is ending.")

    def scale(self, workers: int) -> str:
        """Starts workers, or tells some to leave.

        Args:
            workers: how many are to run, as `check_scale` accepts it.

        Returns:
            What has been done, for people to read.
        """
        said = [
            self._enlist(task) if task.worker < workers else self._remove(task)
            for task in self._places
        ]
        # The others may have ended while it waited to be started again.
        self._look_for_end()
        return "; ".join(filter(None, said)) or f"{workers} workers already"

    def _enlist(self, task: Task) -> str:
        """Sees to it that a worker runs; returns what has been done."""
        was_wanted, task.is_wanted = task.is_wanted, True
        if task.is_done:
            return "" if was_wanted else f"{task.label} has finished"
        if task.is_running:
            if was_wanted:
                return ""
            return f"{task.label} comes back when it has left"
        if task in self._restarts:
            return ""
        # It was not started, has left, or has used up its restarts.
        task.restarts = self._excused[task] = 0
        self._start(task)
        return f"{task.label} started"

    def _remove(self, task: Task) -> str:
        """Sees to it that a worker leaves; returns what has been done."""
        if not task.is_wanted:
            return ""
        task.is_wanted = False
        self._restarts.pop(task, None)
        if not task.is_running:
            return f"{task.label} stays away"
        if task not in self._leaving:
            seconds = self._limits.leave_seconds
            self._leaving[task] = time.monotonic() + seconds
            task.terminate()
            self._report.say(f"{task.label}: {seconds:g} s to leave")
        return f"{task.label} leaves"

    def look(self) -> None:
        """Sees to tasks that have ended."""
        for task in self.running:
            status = task.ended()
            if status is not None:
                self._on_end(task, status)
        if not self._remaining and self._servers_due != float("inf"):
            self._terminate_servers()

    def look_at_time(self) -> None:
        """Does what is due: restarts, and the next phase."""
        now = time.monotonic()
        for task, restart in [*self._restarts.items()]:
            # One that cannot start ends the run, and all restarts.
            if restart.when <= now and self._restarts.pop(task, None):
                self._start(task)
        for task in [t for t, when in self._leaving.items() if when <= now]:
            self._leaving[task] = float("inf")
            self._report.say(f"{task.label} has not left: killing it")
            task.kill()
        if self.is_over:
            return
        if now >= self._servers_due:
            self._terminate_servers()
        if now >= self._report_due:
            self._report_due = now + _REPORT_SECONDS
            left = max(0.0, self.deadline - now)
            self._report.say(
                f"waiting for {self._names()} to end: {left:.0f} s left"
            )
        if now < self.deadline:
            return
        if self.phase == RunPhase.ENDING:
            seconds = self._limits.grace_seconds
            self._report.say(
                f"{self._names()}: not ended by itself in {seconds:g} s"
            )
        self.go_on(RunPhase(self.phase + 1))

    def go_on(self, phase: RunPhase) -> None:
        """Enters a later phase, or that of now once more.

        Args:
            phase: the phase; an earlier one changes nothing.
        """
        if phase < self.phase:
            return
        self.phase = phase
        self._restarts.clear()
        self._servers_due = self._report_due = float("inf")
        if phase == RunPhase.ENDING:
            self._allow(self._limits.grace_seconds)
        elif phase == RunPhase.TERMINATING:
            now, seconds = time.monotonic(), self._limits.terminate_seconds
            self._allow(seconds)
            self._report_due = now + _REPORT_SECONDS
            self._servers_due = now + _WORKERS_PART * seconds
            # A worker's last step, and the chief's checkpoint, need servers.
            others = [task for task in self.running if not task.is_server]
            self._end(others)
            if not others:
                self._terminate_servers()
        elif phase == RunPhase.KILLING:
            self._end(self.running, kills=True)
            self._allow(_SECONDS_AFTER_KILL)
        else:
            self._report.say(
                f"{self._names()}: still there after SIGKILL, given up"
            )

    def _start(self, task: Task) -> None:
        try:
            task.start(self._out, self._err, self._guard)
        except OSError as error:
            self._fail(task, 126, f"{task.label} cannot start: {error}")
        else:
            self._report.say(f"{task.label}: pid {task.pid}, {task.address}")

    def _on_end(self, task: Task, status: int) -> None:
        """Decides what the end of a task means."""
        self._report.say(*task.finish(self._guard))
        cause = task.cause(status) if status else None
        cannot_start = cause is not None and cause.is_final
        what = run_report.end_of(task.label, status, cause)
        was_leaving = self._leaving.pop(task, None) is not None
        if self.phase >= RunPhase.TERMINATING:
            return
        if was_leaving:
            self._on_left(task, status, what)
        elif not status:
            task.is_done = True
            self._report.say(f"{task.label} is done")
            self._give_up_restarts()
        elif self._limits.fail_fast:
            self._fail(task, status, what)
        elif missing := self._needed_and_done(task):
            self._fail_without(missing, task, status, what)
        elif self._is_excused(task, cause):
            self._excused[task] += 1
            self._report.say(
                f"{what}; started again in {_SECONDS_BEFORE_RESTART:g} s"
            )
            self._restart(task, _SECONDS_BEFORE_RESTART, status, what)
        elif (
            self.phase == RunPhase.RUNNING
            and task.restarts < self._limits.max_restarts
            and not cannot_start
        ):
            seconds = min(
                _SECONDS_BEFORE_RESTART * 2**task.restarts,
                _MOST_SECONDS_BEFORE_RESTART,
            )
            task.restarts += 1
            self._report.say(
                f"{what}; restart {task.restarts} of "
                f"{self._limits.max_restarts} in {seconds:g} s"
            )
            self._restart(task, seconds, status, what)
        elif self._others_go_on(task, cannot_start):
            self._fail(task, status, what, goes_on=True)
        else:
            if cannot_start and self._limits.max_restarts:
                what += ", which no restart would change"
            self._fail(task, status, what)
        self._look_for_end()

    def _restart(
        self, task: Task, seconds: float, status: int, what: str
    ) -> None:
        when = time.monotonic() + seconds
        self._restarts[task] = Restart(when, status, what)

    def _give_up_restarts(self) -> None:
        """Fails tasks that have ended just before one that they need."""
        for task, restart in [*self._restarts.items()]:
            if missing := self._needed_and_done(task):
                del self._restarts[task]
                self._fail_without(missing, task, restart.status, restart.what)

    def _fail_without(
        self, missing: str, task: Task, status: int, what: str
    ) -> None:
        what += f"; it cannot train again: {missing} is done"
        self._fail(task, status, what, goes_on=self._others_have_trained)

    def _look_for_end(self) -> None:
        """Ends the run, or says so, where nobody trains any more."""
        if self.phase == RunPhase.RUNNING:
            self._tell_end()
        if not self._remaining:
            if self._has_failed:
                # They would wait for those that failed to come back.
                self.go_on(RunPhase.TERMINATING)
            elif self.phase == RunPhase.RUNNING:
                self.go_on(RunPhase.ENDING)

    def _tell_end(self) -> None:
        """Tells an evaluator when nobody trains any more, and then servers."""
        if all(task.is_evaluator for task in self._remaining):
            for task in self._remaining or self.running:
                task.tell_end()

    def _needed_and_done(self, task: Task) -> str:
        """Returns the tasks that a task needs, and that have ended for good.

        Another start would wait for them in vain: for servers, and without
        servers for the other workers.
        """
        if self.phase != RunPhase.RUNNING:
            return ""  # It is not started again anyway.
        servers = [other for other in self._tasks if other.is_server]
        needed = servers or self._tasks
        return ", ".join(
            other.label for other in needed if other.is_done and other != task
        )

    def _is_excused(self, task: Task, cause: Cause | None) -> bool:
        """Whether a task is started again without this being counted.

        One failure of one worker ends all workers of a cluster without
        servers, some of them twice: it costs one restart.
        """
        return (
            self.phase == RunPhase.RUNNING
            and cause is not None
            and cause.is_of_another
            and self._excused[task]
            < _EXCUSED_PER_RESTART * self._limits.max_restarts
        )

    def _others_go_on(self, task: Task, cannot_start: bool) -> bool:
        """Whether training goes on without a task that stays away.

        It does without the evaluator, and without a worker that is not the
        chief, where parameters are on servers and some other worker is left;
        but not without a worker that no restart would start.
        """
        return self.phase == RunPhase.RUNNING and (
            task.is_evaluator
            or not cannot_start
            and task.worker is not None
            and task.worker >= self._limits.min_workers
            and any(other.is_server for other in self._tasks)
        )

    @property
    def _others_have_trained(self) -> bool:
        """Whether tasks run that need neither servers nor each other now.

        Without servers, once one worker is done, the others at most save.
        """
        return any(self.running) and not any(t.is_server for t in self._tasks)

    def _on_left(self, task: Task, status: int, what: str) -> None:
        """A worker that was told to leave has ended, however."""
        as_told = status in (0, 128 + signal.SIGTERM)
        said = f"{task.label} has left" if as_told else f"{what} as it left"
        self._report.say(said)
        if task.is_wanted and self.phase == RunPhase.RUNNING:
            self._start(task)

    def _fail(
        self, task: Task, status: int, why: str, *, goes_on: bool = False
    ) -> None:
        """Notes a failure; gives the others some time, or lets them go on."""
        why += "; the others go on without it" if goes_on else ""
        self._report.fail(status, why, task.log_path)
        self._has_failed = True
        if self.phase == RunPhase.RUNNING and not goes_on:
            seconds = self._limits.grace_seconds
            if seconds and self._remaining:
                self._report.say(f"{self._names()}: {seconds:g} s left to end")
            self.go_on(RunPhase.ENDING)

    def _terminate_servers(self) -> None:
        self._servers_due = float("inf")
        self._end([task for task in self.running if task.is_server])

    def _end(self, tasks: Sequence[Task], *, kills: bool = False) -> None:
        if tasks:
            labels = ", ".join(task.label for task in tasks)
            self._report.say(
                f"{'killing' if kills else 'terminating'} {labels}"
            )
        for task in tasks:
            task.line_filter.is_ending = True
            if kills:
                task.kill()
            else:
                # A worker's last step may need the processes that it has.
                task.terminate()

    def _allow(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds

    def _names(self) -> str:
        return ", ".join(task.label for task in self.running)
