"""Requests to a running launcher from other commands of the same user.

Each launcher listens on a Unix socket, `PID.socket` in a directory that is its
user's alone. A question is one line of JSON, and so is the answer.
"""

from collections.abc import Callable
from collections.abc import Mapping
import contextlib
import json
import os
import pathlib
import socket
import stat
import tempfile

from tfdist.cli import usage

_SECONDS = 2.0
_MOST_BYTES = 4096


class RefusedError(Exception):
    """The launcher does not do what it was asked; the message says why."""


class ControlSocket(contextlib.AbstractContextManager):
    """A launcher's socket, as long as the context lasts."""

    def __init__(self):
        """Opens the socket.

        Raises:
            OSError: if there is no place for it.
        """
        self._path = _directory() / f"{os.getpid()}.socket"
        self._path.unlink(missing_ok=True)  # Of a dead one with this number.
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(str(self._path))
            self._socket.listen()
            self._socket.setblocking(False)
        except OSError:
            self._socket.close()
            raise

    def __exit__(self, *exc_info):
        self._path.unlink(missing_ok=True)
        self._socket.close()

    def fileno(self) -> int:
        """The file descriptor; readable when somebody asks."""
        return self._socket.fileno()

    def answer(self, handle: Callable[[Mapping], str]) -> None:
        """Answers one question.

        Args:
            handle: function of the question that returns what the user is to
                be told; may raise `RefusedError`.
        """
        with contextlib.suppress(OSError):
            connection, _ = self._socket.accept()
            with connection:
                # A caller that says nothing must not hold up the launcher.
                connection.settimeout(_SECONDS)
                question = connection.makefile("rb").readline(_MOST_BYTES)
                try:
                    answer = {"done": handle(_parsed(question))}
                except RefusedError as error:
                    answer = {"refused": str(error)}
                connection.sendall(json.dumps(answer).encode() + b"\n")


def launchers() -> list[int]:
    """Returns the process ids of this user's launchers that run."""
    found = []
    for path in _directory().glob("*.socket"):
        try:
            _connected(path).close()
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)  # It was killed.
        except OSError:
            pass
        else:
            found.append(int(path.stem))
    return sorted(found)


def only_launcher(pid: int | None) -> int:
    """Returns the process id of the launcher that is meant.

    Args:
        pid: the flag `--pid`; `None` where one launcher runs.

    Raises:
        UsageError: if there is no such launcher, or there are several, or the
            directory of their sockets cannot be used.
    """
    try:
        running = launchers()
    except OSError as error:
        raise usage.UsageError(
            "The directory of launchers' sockets, in $XDG_RUNTIME_DIR or else "
            f"in that of temporary files, cannot be used: {error}"
        ) from error
    if pid is None:
        if not running:
            raise usage.UsageError("No `tfdist launch` of this user runs here.")
        if len(running) > 1:
            raise usage.UsageError(
                "Flag --pid must say which launcher is meant: several run, "
                f"{', '.join(map(str, running))}."
            )
        (pid,) = running
    usage.check(
        pid in running,
        "pid",
        "be that of a `tfdist launch` of this user that runs here "
        f"({', '.join(map(str, running)) or 'none does'})",
        pid,
    )
    return pid


def ask(pid: int, question: Mapping) -> str:
    """Asks a launcher.

    Args:
        pid: its process id.
        question: what JSON can hold.

    Returns:
        What it says.

    Raises:
        RefusedError: if it refuses, or does not answer.
    """
    try:
        with _connected(_directory() / f"{pid}.socket") as connection:
            connection.sendall(json.dumps(question).encode() + b"\n")
            answer = connection.makefile("rb").readline()
    except OSError as error:
        raise RefusedError(
            f"The launcher {pid} does not answer: {error}"
        ) from error
    content = _parsed(answer)
    if "done" in content:
        return content["done"]
    raise RefusedError(content.get("refused", f"The launcher {pid} has ended."))


def _connected(path: pathlib.Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    # The launcher looks after each death and line of output in between.
    connection.settimeout(5 * _SECONDS)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def _parsed(line: bytes) -> Mapping:
    try:
        content = json.loads(line)
    except ValueError:
        content = None
    return content if isinstance(content, dict) else {}


def _directory() -> pathlib.Path:
    """The directory of the sockets, which nobody else may enter.

    Raises:
        OSError: if there is none, or it is not this user's alone.
    """
    user = os.getuid()
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):
        path = pathlib.Path(runtime, "tfdist")
    else:
        path = pathlib.Path(tempfile.gettempdir(), f"tfdist-{user}")
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if (
        not stat.S_ISDIR(status.st_mode)
        or status.st_uid != user
        or status.st_mode & 0o077
    ):
        raise OSError(f"{path} must be a directory of this user alone")
    return path
