"""Why a task failed: the last error that it wrote, and the error's place.

Python writes an exception that nobody catches to standard error. The launcher
reads it there, so that the script runs exactly as it does alone, without a
wrapper. Where a signal ends Python, `faulthandler` writes where it was, and C++
writes why it aborts.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
import re
import signal
import sysconfig
import time
import traceback

from tfdist.cli import line_assembler
from tfdist.cli import log_levels

# In the tracebacks of exception groups.
_MARGIN = re.compile(rb" *[|+] ")
_HEADER = re.compile(rb"(Exception Group )?Traceback \(most recent call last\)")
# What Python 3.11 and later put below a line of source. 3.11 itself does not
# indent it where the call takes up the whole line.
_ANCHORS = re.compile(rb" *[~^]+$")
# Without a function: the place of bad syntax.
# AutoGraph marks functions with stars.
_FRAME = re.compile(rb' +File "(.+)", line (\d+)(?:,? in (.+?)(?:  \*+)?)?$')
_CHAIN = re.compile(
    rb"During handling of the above exception, another exception occurred:"
    rb"|The above exception was the direct cause of the following exception:"
)
# What Keras and TensorFlow put on a line of its own before their message.
_PREFACE = re.compile(rb"Exception encountered when calling|execution error:$")
# AutoGraph writes frames of the program below this line, and then the error.
_USER_CODE = re.compile(rb".*: in user code:$")
_USER_ERROR = re.compile(rb" {4}(\S.*)")
# What Python says of a script or module that it cannot run.
_CANNOT_RUN = re.compile(
    rb"\S*python[\d.]*: (can't open file .*|No module named .*"
    rb"|Error while finding module .*)"
)
# What Python says before an error that ends nothing: of `__del__`, of another
# thread, of an `atexit` function, of a callback of `ctypes`.
_ASIDE = re.compile(
    rb"Exception ignored (in|on|while)\b|Exception in thread \S"
    rb"|Error in atexit\._run_exitfuncs:"
)
_FAULT = re.compile(rb"Fatal Python error: .*")
_STACK = re.compile(rb"(Current thread|Stack|Thread)\b.*most recent call first")
_CPP_FAULT = re.compile(rb"F\d{4} [\d:.]+ +\d+ (\S+\] .*)|  what\(\):  (.*)")
_FAULT_SIGNALS = (
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGTRAP,
)
_ARGUMENTS = re.compile(r"\s*Arguments received by .*", re.DOTALL)
# Of `cluster.peers`: a worker is gone, or its old process is not yet. Of
# `cluster.helpers`: a helper is.
_OF_ANOTHER = re.compile(
    rb"training without servers cannot go on without it"
    rb"|do not answer as workers of this cluster do"
    rb"|a worker cannot go on without its helper"
)
# Mistakes of a program, which it makes again; not what a machine, a file or a
# network may cause.
_MISTAKE = re.compile(
    rb"(SyntaxError|IndentationError|TabError|ImportError|ModuleNotFoundError"
    rb"|NameError|UnboundLocalError|AttributeError|TypeError|ValueError"
    rb"|LookupError|KeyError|IndexError|AssertionError|ZeroDivisionError"
    rb"|NotImplementedError"
    rb"|(tfdist\.\S*)?(ClusterConfig|ModelMismatch|Program)Error)(:|$)"
)
_MOST_CHARACTERS = 300
# A process that an error ends takes at most so many seconds to end, and may log
# meanwhile. An error that was written before that was caught.
_END_SECONDS = 300.0
# AutoGraph runs functions from such files, in the temporary directory.
_GENERATED = "__autograph_generated_file"
_LIBRARIES = tuple(
    os.path.join(directory, "")
    for path in (
        *(
            sysconfig.get_path(name)
            for name in ("stdlib", "purelib", "platlib")
        ),
        pathlib.Path(__file__).parents[1],  # tfdist itself.
    )
    for directory in {str(path), os.path.realpath(path)}
)


@dataclasses.dataclass(frozen=True)
class Cause:
    """An error that ended a task.

    Attributes:
        error: type and message, on one line.
        place: where in the user's code, as `train.py:7, in <module>`; `None`
            where that is not known.
        is_final: whether another start would fail in the same way: a mistake
            of the program, such as a `TypeError` or a failed import.
        is_of_another: whether it is that another worker or a helper is gone,
            without which this one cannot go on.
    """

    error: str
    place: str | None = None
    is_final: bool = False
    is_of_another: bool = False

    def __str__(self):
        return f"{self.error} ({self.place})" if self.place else self.error


class ErrorReader:
    """Follows what a process writes, line by line, and keeps its last error."""

    def __init__(self):
        """Starts before the first line."""
        self._error = b""
        self._read_error_at = -math.inf
        self._frames: list[tuple[bytes, bytes, bytes | None]] = []
        self._in_frames = False
        self._is_at_end = False  # Only the error has been written since.
        self._lacks_message = False
        self._in_user_code = False
        self._fault = b""
        self._cpp_fault = b""
        self._in_own_stack = False
        self._last_line = b""
        # The error and its frames, while one is read that ends nothing.
        self._kept: tuple[bytes, list] | None = None

    def read(self, line: bytes) -> bool:
        """Reads the next line.

        Args:
            line: the line, without escape sequences.

        Returns:
            Whether it is part of a traceback or of another fatal error.
        """
        plain = _MARGIN.sub(b"", line, count=1)
        begins_aside = self._begins_aside(plain)
        is_part = (
            begins_aside
            or self._read_fault(line)
            or self._read_traceback(plain)
        )
        if self._kept is not None:
            pass  # The error before is the one that has ended the process.
        elif is_part:
            self._is_at_end = True
            self._read_error_at = time.monotonic()
        elif log_levels.level_of(line) is not None:
            self._is_at_end = False
        if line.strip() and not log_levels.is_chatter(line):
            self._last_line = line.strip()
        return is_part

    def cause(self, status: int) -> Cause | None:
        """Returns what ended the process, where it has said so.

        Args:
            status: its exit status, 128 + n for signal n.
        """
        self._end_aside()
        if status > 128:
            error = self._cpp_fault or self._fault
            if not error or status - 128 not in _FAULT_SIGNALS:
                return None
            return Cause(
                _shortened(error), self._place() if self._fault else None
            )
        ends_soon = time.monotonic() - self._read_error_at < _END_SECONDS
        if self._error and ends_soon and (status == 1 or self._is_at_end):
            is_final = _MISTAKE.match(self._error) is not None
            is_of_another = _OF_ANOTHER.search(self._error) is not None
            return Cause(
                _shortened(self._error),
                self._place(),
                is_final,
                is_of_another,
            )
        if self._last_line:
            return Cause(f"its last line was: {_shortened(self._last_line)}")
        return None

    def _begins_aside(self, line: bytes) -> bool:
        """Whether an error that ends nothing follows; ends one that is over."""
        if _ASIDE.match(line):
            self._end_aside()
            self._kept = self._error, self._frames
            self._in_frames, self._error = False, b""
            return True
        if self._kept is None or self._in_frames or not line.strip():
            return False
        # Its traceback, or after that another one of the same error.
        if (_CHAIN if self._error else _HEADER).match(line):
            self._error = b""
        else:
            self._end_aside()
        return False

    def _end_aside(self) -> None:
        if self._kept is not None:
            (self._error, self._frames), self._kept = self._kept, None
            self._in_frames = self._lacks_message = False
            self._in_user_code = False

    def _read_traceback(self, line: bytes) -> bool:
        frame = _FRAME.match(line)
        if _HEADER.match(line) or (
            # Bad syntax of the script itself: there is no header.
            frame and frame[3] is None and not self._in_frames
        ):
            self._in_frames, self._frames, self._error = True, [], b""
            self._in_user_code = False
        if frame and (self._in_frames or self._in_user_code):
            self._frames.append(frame.groups())
        if self._in_frames:
            is_within = line[:1] in (b"", b" ") or _ANCHORS.match(line)
            if not is_within and not _HEADER.match(line):
                self._in_frames = False
                self._begin_error(line)
            return True
        if self._in_user_code and line[:1] in (b"", b" "):
            if not frame and (error := _USER_ERROR.match(line)):
                self._begin_error(error[1])
            return True
        if self._lacks_message and self._is_at_end:
            self._error += b" " + line.strip()
            self._lacks_message = not line.strip()
            return True
        if refused := _CANNOT_RUN.match(line):
            self._error, self._frames = b"ImportError: " + refused[1], []
            return True
        return _CHAIN.match(line) is not None

    def _begin_error(self, line: bytes) -> None:
        self._error = line
        self._lacks_message = _PREFACE.search(line) is not None
        self._in_user_code = _USER_CODE.match(line) is not None

    def _read_fault(self, line: bytes) -> bool:
        if fault := _CPP_FAULT.match(line):
            self._cpp_fault = fault[1] or fault[2]
            return True
        if fault := _FAULT.match(line):
            self._fault, self._frames = fault[0], []
        elif not self._fault:
            return False
        elif stack := _STACK.match(line):
            self._in_own_stack = stack[1] != b"Thread"
        elif (frame := _FRAME.match(line)) and self._in_own_stack:
            self._frames.insert(0, frame.groups())
        return True  # Nothing else is written after it.

    def _place(self) -> str | None:
        """The innermost frame in the user's own code, if there is one."""
        frames = [
            (
                os.fsdecode(file),
                int(line),
                (function or b"").decode("utf-8", "replace"),
            )
            for file, line, function in self._frames
        ]
        own = [frame for frame in frames if _is_own(frame[0])]
        if not frames:
            return None
        file, line, function = (own or frames)[-1]
        path = file
        if os.path.isabs(file):
            # The launcher's own directory may have been removed.
            with contextlib.suppress(OSError):
                path = os.path.relpath(file)
        place = f"{file if path.startswith('..') else path}:{line}"
        return f"{place}, in {function}" if function else place


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Returns where an error was on its way through the user's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if _is_own(frame.filename)]


def message_of(error: BaseException) -> str:
    """Returns what an error of Keras says, on one line."""
    # Names of files may have what no encoding has.
    written = str(error).encode("utf-8", "replace")
    text = line_assembler.without_escapes(written).decode()
    if _PREFACE.search(text.partition("\n")[0].encode()):
        text = text.partition("\n")[2]
    return _shortened(_ARGUMENTS.sub("", text).encode())


def _is_own(file: str) -> bool:
    is_generated = os.path.basename(file).startswith(_GENERATED)
    return not is_generated and not file.startswith(("<", *_LIBRARIES))


def _shortened(text: bytes) -> str:
    words = " ".join(text.decode("utf-8", "replace").split())
    if len(words) > _MOST_CHARACTERS:
        words = f"{words[: _MOST_CHARACTERS - 4]} ..."
    return words
