"""One task's process: its group, its output, its end."""

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import uuid

from tfdist.cli import line_assembler
from tfdist.cli import parent_death
from tfdist.cli.failure import Cause
from tfdist.cli.failure import ErrorReader
from tfdist.cli.line_assembler import LineAssembler
from tfdist.cli.output import LogFile
from tfdist.cli.output import OutputStream
from tfdist.cli.shown_output import LineFilter
from tfdist.cluster import environment

_LIFELINE = (sys.executable, "-I", "-S", parent_death.__file__)
# A process group of its own, and no session: Linux shares processors out among
# sessions first (`sched_autogroup_enabled`), and a thread of a task was then
# seen to wait 0.1 to 0.7 s for one, where the others' threads kept all busy.
_OWN_GROUP = (
    {"process_group": 0}
    if sys.version_info >= (3, 11)
    else {"start_new_session": True}
)
_READ_BYTES = 1 << 16
_MOST_LEFT_READS = 32  # Of a dead task: more than a pipe can hold.


class Guard(contextlib.AbstractContextManager):
    """The process that kills what tasks are if the launcher is killed.

    See `parent_death.py`. Should somebody kill the guard, the tasks themselves
    still die with the launcher.

    Attributes:
        mark: what it knows their processes by, in their environment.
    """

    def __init__(self):
        self.mark = uuid.uuid4().hex
        self._process = subprocess.Popen(
            [*_LIFELINE, "guard", self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __exit__(self, *exc_info):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def add(self, group: int) -> None:
        """Puts a process group on the list."""
        self._write(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Takes a process group off the list."""
        self._write(f"-{group}\n")

    def _write(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


@dataclasses.dataclass
class _Source:
    """One of the two streams that a process writes to."""

    is_error: bool
    stream: OutputStream
    assembler: LineAssembler = dataclasses.field(default_factory=LineAssembler)
    errors: ErrorReader = dataclasses.field(default_factory=ErrorReader)


class Task:
    """A command that runs as one task of the cluster, perhaps repeatedly.

    Attributes:
        label: what people call it, as `worker 0`.
        address: its `host:port`.
        is_server: whether it ends only when the others have.
        is_evaluator: whether it evaluates what others train.
        worker: its number among workers that come and go; `None` for others.
        is_wanted: whether it is to run, or have run.
        is_done: whether it has ended with status 0.
        restarts: how often it was started again.
        log_path: the file of its output, if there is one.
        status_path: the file in which a worker tells how it trains.
        end_path: the file that tells a server or an evaluator that training is
            over.
        line_filter: which of its lines are shown.
    """

    def __init__(
        self,
        label: str,
        address: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        is_server: bool = False,
        is_evaluator: bool = False,
        worker: int | None = None,
        is_wanted: bool = True,
        color: int | None = None,
        log_dir: str | None = None,
        status_path: str | None = None,
        end_path: str | None = None,
        line_filter: LineFilter | None = None,
    ):
        """Describes the task; `start` starts it.

        Args:
            label: what people call it.
            address: its `host:port`.
            command: the command, the first part an absolute path.
            environ: the environment.
            is_server: whether it ends only when the others have.
            is_evaluator: whether it evaluates what others train.
            worker: its number among workers that come and go.
            is_wanted: whether it is started with the others.
            color: the code of its label's colour.
            log_dir: where its output goes as well, as `worker-0.log`.
            status_path: the file in which a worker tells how it trains.
            end_path: the file by which `tell_end` tells the process.
            line_filter: which of its lines are shown; all by default.
        """
        self.label = label
        self.address = address
        self.is_server = is_server
        self.is_evaluator = is_evaluator
        self.worker = worker
        self.is_wanted = is_wanted
        self.is_done = False
        self.restarts = 0
        self.status_path = status_path
        self.end_path = end_path
        self._command = command
        self._environ = environ
        self._color = color
        self.line_filter = line_filter or LineFilter(
            shows_all=True, is_verbose=True
        )
        self._log = None
        self.log_path = None
        if log_dir:
            name = label.replace(" ", "-") + ".log"
            self.log_path = str(pathlib.Path(log_dir, name))
            self._log = LogFile(self.log_path)
        self._process: subprocess.Popen | None = None
        self._sources: dict[int, _Source] = {}
        self._errors = ErrorReader()

    @property
    def is_running(self) -> bool:
        """Whether there is a process whose end was not handled yet."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The process's id, which is also that of its group."""
        return self._process.pid

    @property
    def descriptors(self) -> list[int]:
        """The file descriptors to read the task's output from."""
        return list(self._sources)

    def start(self, out: OutputStream, err: OutputStream, guard: Guard) -> None:
        """Starts the process, in a process group of its own.

        Args:
            out: where its standard output goes.
            err: where its standard error goes.
            guard: who kills the group if the launcher is killed.
        """
        if self.status_path:
            # What the process before has told is not true of this one.
            with contextlib.suppress(OSError):
                os.unlink(self.status_path)
        told = {
            environment.STATUS_FILE: self.status_path or "",
            environment.END_FILE: self.end_path or "",
        }
        self._process = subprocess.Popen(
            [*_LIFELINE, "exec", str(os.getpid()), *self._command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self._environ, **told, parent_death.MARK: guard.mark},
            **_OWN_GROUP,
            bufsize=0,
        )
        guard.add(self._process.pid)
        sources = _Source(False, out), _Source(True, err)
        pipes = self._process.stdout, self._process.stderr
        for pipe, source in zip(pipes, sources, strict=True):
            os.set_blocking(pipe.fileno(), False)
            self._sources[pipe.fileno()] = source
        self._errors = sources[1].errors

    def read(self, descriptor: int) -> list[str]:
        """Passes on what can be read now.

        Args:
            descriptor: one of `descriptors`.

        Returns:
            What the user should be told about it.
        """
        source = self._sources[descriptor]
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return []
        if data:
            return self._write(source.assembler.feed(data), source)
        del self._sources[descriptor]
        return self._write(source.assembler.close(), source)

    def ended(self) -> int | None:
        """Returns the exit status, 128 + n for signal n; `None` if running."""
        status = self._process.poll()
        return status if status is None or status >= 0 else 128 - status

    def cause(self, status: int) -> Cause | None:
        """Returns why the last process failed, where it has said so.

        Args:
            status: what `ended` has returned; after `finish`.
        """
        return self._errors.cause(status)

    def finish(self, guard: Guard) -> list[str]:
        """Cleans up after the process has ended.

        Args:
            guard: the guard that `start` got.

        Returns:
            What the user should be told about it.
        """
        self.kill()  # What it has started and left behind.
        guard.remove(self._process.pid)
        notes = []
        for descriptor, source in list(self._sources.items()):
            # Not until the end of the stream, which a process that detached
            # itself may hold open for ever.
            for _ in range(_MOST_LEFT_READS):
                if descriptor in self._sources:
                    notes += self.read(descriptor)
            if descriptor in self._sources:
                notes += self._write(source.assembler.close(), source)
        self._sources.clear()
        self._process.stdout.close()
        self._process.stderr.close()
        self._process = None
        return notes

    def kill(self) -> None:
        """Sends SIGKILL to the process group, if there still is one."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def terminate(self) -> None:
        """Sends SIGTERM to the process alone, which looks after its own."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._process.send_signal(signal.SIGTERM)

    def tell_end(self) -> None:
        """Tells the process that training is over: no worker starts again."""
        if self.end_path:
            # On a full disk, say: SIGTERM follows.
            with contextlib.suppress(OSError):
                pathlib.Path(self.end_path).touch()

    def _write(self, written: list[bytes], source: _Source) -> list[str]:
        notes = []
        for line in written:
            plain = line_assembler.without_escapes(line)
            if self.line_filter.shows(
                line,
                is_error=source.is_error,
                in_traceback=source.errors.read(plain),
            ):
                source.stream.write_line(self.label, self._color, line)
            if self._log:
                note = self._log.write_line(line)
                notes += [note] if note else []
        return notes
