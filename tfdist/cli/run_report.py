"""The launcher's messages, and the exit status of a run."""

import signal

from tfdist.cli.failure import Cause
from tfdist.cli.output import OutputStream


class RunReport:
    """Tells the user how a run goes, and keeps its exit status.

    Attributes:
        status: that of the first failure; `None` before.
        first_failure: what the user is told about it in the end, where the
            launcher's last line is all that is looked at.
    """

    def __init__(self, err: OutputStream):
        """Prepares the report.

        Args:
            err: where the launcher's messages go.
        """
        self.status: int | None = None
        self.first_failure = ""
        self._err = err

    def say(self, *messages: str) -> None:
        """Writes messages of the launcher."""
        for message in messages:
            # Names of files come as the system has them.
            line = message.encode("utf-8", "surrogateescape")
            self._err.write_line("tfdist", None, line)

    def fail(self, status: int, why: str, output: str | None = None) -> None:
        """Notes a failure; the first one is the status of all.

        Args:
            status: the exit status.
            why: what has happened.
            output: the file or directory to read about it.
        """
        if self.status is None:
            self.status = status
            self.first_failure = why
            if output is not None:
                self.first_failure += f"; output: {output}"
        self.say(why)


def end_of(label: str, status: int, cause: Cause | None) -> str:
    """Returns how a task has ended, for the user.

    Args:
        label: the task's.
        status: its exit status, 128 + n for signal n.
        cause: why, where the task has said so.
    """
    what = f"{label} exited with status {status}"
    if status > 128 and status - 128 in set(signal.Signals):
        name = signal.Signals(status - 128).name
        what = f"{label} was ended by {name} (status {status})"
        if name == "SIGKILL":
            what += ", as by the system when memory runs out"
    return what if cause is None else f"{what}: {cause}"
