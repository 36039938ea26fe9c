"""Requests to a running launcher from other commands of the same user.

Each launcher listens on a Unix socket, `PID.HOST.socket` in a directory that is
its user's alone. A question is one line of JSON, and so is the answer.
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
import zlib

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
        self._path = _checked(_places()[0]) / _name(os.getpid())
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
    for directory in _directories():
        for path in directory.glob(_name("*")):
            pid = int(path.name.partition(".")[0])
            try:
                _connected(path).close()
            except ConnectionRefusedError:
                if not _runs(pid):  # It was killed.
                    path.unlink(missing_ok=True)
            except OSError:
                pass
            else:
                found.append(pid)
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
            places = " or ".join(map(str, _places()))
            raise usage.UsageError(
                "No `tfdist launch` of this user runs here: none has a socket "
                f"in {places}."
            )
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
        with _connected(_path_of(pid)) as connection:
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


def _name(pid: int | str) -> str:
    """The name of a socket, in a directory that hosts may share."""
    host = zlib.crc32(socket.gethostname().encode())
    return f"{pid}.{host:08x}.socket"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _path_of(pid: int) -> pathlib.Path:
    """The path of a launcher's socket.

    Raises:
        OSError: if there is none.
    """
    for directory in _directories():
        path = directory / _name(pid)
        if path.exists():
            return path
    raise FileNotFoundError("it has no socket")


def _places() -> list[pathlib.Path]:
    """The directories of sockets; a launcher that starts uses the first.

    Which it is differs between a login and a job of cron, say.
    """
    places = [pathlib.Path(tempfile.gettempdir(), f"tfdist-{os.getuid()}")]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):
        places.insert(0, pathlib.Path(runtime, "tfdist"))
    return places


def _directories() -> list[pathlib.Path]:
    """The directories in which to look.

    Raises:
        OSError: if the first is none, or not this user's alone.
    """
    first, *others = _places()
    found = [_checked(first)]
    for place in others:
        with contextlib.suppress(OSError):
            found.append(_checked(place))
    return found


def _checked(path: pathlib.Path) -> pathlib.Path:
    """Returns a directory of sockets, which nobody else may enter.

    Raises:
        OSError: if there is none, or it is not this user's alone.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if (
        not stat.S_ISDIR(status.st_mode)
        or status.st_uid != os.getuid()
        or status.st_mode & 0o077
    ):
        raise OSError(f"{path} must be a directory of this user alone")
    return path
