"""Outlets of the tasks' lines: two streams that never block, and files."""

from collections.abc import Callable
import errno
import os
import select
import stat
import tempfile

from tfdist.cli import line_assembler

COLORS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""Foreground colours of the tasks, in turn (the codes of ECMA-48)."""


class OutputStream:
    """Standard output or error, written without ever blocking the launcher.

    A reader that stops reading (a pager, a terminal under Ctrl-S) must not
    keep the launcher from ending its tasks, so what the stream does not take
    at once waits here; `is_full` asks the launcher to read no more for the
    time being.
    """

    _FULL_BYTES = 1 << 18

    def __init__(self, descriptor: int, color: str):
        """Prepares the stream.

        Args:
            descriptor: its file descriptor.
            color: `always`, `never`, or `auto` for a terminal where the
                environment does not forbid it by `NO_COLOR`.
        """
        self.color = color == "always" or (
            color == "auto"
            and os.isatty(descriptor)
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )
        self.is_broken = False
        self._has_lost = False
        self._name = "standard output" if descriptor == 1 else "standard error"
        self._buffer = bytearray()
        self._descriptor = _without_blocking(descriptor)

    def fileno(self) -> int:
        """Returns the descriptor that becomes writable."""
        return self._descriptor

    @property
    def is_pending(self) -> bool:
        """Whether lines wait to be written."""
        return bool(self._buffer)

    @property
    def is_full(self) -> bool:
        """Whether more lines wait than should."""
        return len(self._buffer) > self._FULL_BYTES

    def write_line(self, label: str, code: int | None, line: bytes) -> None:
        """Queues one line under the label of a task.

        Args:
            label: what stands in brackets before it.
            code: the colour of the label.
            line: the line, without its end.
        """
        if self.is_broken:
            return  # It would wait for ever, and fill the stream.
        prefix = f"[{label}]"
        if self.color and code is not None:
            prefix = f"\x1b[{code}m{prefix}\x1b[0m"
        if not self.color:
            line = line_assembler.without_escapes(line)
        self._buffer += prefix.encode() + b" " + line + b"\n"

    def flush(self) -> str | None:
        """Writes what the stream takes now; call it when it is writable.

        Returns:
            What went wrong, once, or `None`. Training does not stop because
            a disk is full.
        """
        while self._buffer and not self.is_broken:
            if not select.select((), (self._descriptor,), (), 0)[1]:
                return None
            # A pipe that is writable takes this many bytes at once, even
            # where the descriptor could not be made non-blocking.
            chunk = self._buffer[: select.PIPE_BUF]
            try:
                del self._buffer[: os.write(self._descriptor, chunk)]
            except BlockingIOError:
                return None
            except OSError as error:
                self._buffer.clear()
                self.is_broken = error.errno in (errno.EPIPE, errno.EIO)
                if not self.is_broken and not self._has_lost:
                    self._has_lost = True
                    return f"lines of {self._name} are lost: {error.strerror}"
        return None


class LogFile:
    """The lines of one task in a file, without colours."""

    def __init__(self, path: str):
        """Opens the file, and empties it.

        Args:
            path: the file.
        """
        self.path = path
        self._file = open(path, "wb", buffering=0)

    def write_line(self, line: bytes) -> str | None:
        """Appends a line.

        Args:
            line: the line, without its end.

        Returns:
            What went wrong, once, or `None`. Training does not stop because
            a disk is full.
        """
        if self._file is None:
            return None
        try:
            self._file.write(line_assembler.without_escapes(line) + b"\n")
        except OSError as error:
            self._file.close()
            self._file = None
            return f"no more lines in {self.path}: {error.strerror}"
        return None

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()


def temporary_log_dir(say: Callable[[str], None]) -> str | None:
    """Returns a new directory; `None` where there is no place for it.

    Args:
        say: what is told a user.
    """
    try:
        return tempfile.mkdtemp(prefix="tfdist-output-")
    except OSError as error:
        say(f"the output of tasks that are not shown is lost: {error}")
        return None


def open_streams(color: str) -> tuple[OutputStream, OutputStream]:
    """Returns standard output and standard error.

    They are one object where they lead to the same place: two writers would
    cut each other's lines when it takes only a part of one.

    Args:
        color: `always`, `never` or `auto`.
    """
    out = OutputStream(1, color)
    if os.path.samestat(os.fstat(1), os.fstat(2)):
        return out, out
    return out, OutputStream(2, color)


def _without_blocking(descriptor: int) -> int:
    """Returns a non-blocking descriptor of the same stream where it can.

    The flag belongs to the open file, which other programs share, so the
    stream is opened once more. Files need none of this, and would lose
    their position.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or os.isatty(descriptor):
        try:
            return os.open(
                f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK
            )
        except OSError:
            pass
    return descriptor
