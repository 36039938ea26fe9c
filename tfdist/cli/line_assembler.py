"""Whole lines out of what a program writes, progress bars included."""

from collections.abc import Callable
import re
import time

REDRAW_SECONDS = 5.0
"""Least time between two showings of a progress bar that is redrawn."""

MAX_LINE_BYTES = 1 << 20
"""A line longer than this comes in parts, so that memory stays bounded."""

_BREAKS = re.compile(rb"(\r*\n|\x08*\r+|\x08+)")
_ESCAPES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")


class Redrawn(bytes):
    """A line that was redrawn, as those of progress bars are."""


class LineAssembler:
    r"""Turns chunks of bytes into lines that stay whole.

    A newline ends a line. A carriage return starts to redraw it, as progress
    bars do: of a redrawn line only the last state comes out, and one in
    between every `REDRAW_SECONDS`. Backspaces delete characters (Keras goes
    back by backspaces and a carriage return). Bytes are not interpreted
    otherwise, so they may be of any encoding, or of none.

    Example:
    >>> assembler = LineAssembler()
    >>> assembler.feed(b"one\ntw"), assembler.feed(b"o\n1/2\r2/2\n")
    ([b'one'], [b'two', b'2/2'])
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        """Starts at the beginning of a line.

        Args:
            clock: returns the time in seconds.
        """
        self._clock = clock
        self._text = bytearray()  # Since the last newline or redraw.
        self._replaced = b""  # The state before it, not shown yet.
        self._shown_at = None  # When this line was redrawn or shown last.
        self._held = b""  # A break that the next chunk may make longer.

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that `data` completes, without their ends."""
        data = self._held + data
        kept = len(data.rstrip(b"\r\x08"))
        data, self._held = data[:kept], data[kept:]
        return self._assemble(data)

    def close(self) -> list[bytes]:
        """Returns what is left as the last line, if anything is."""
        self._held = b""
        rest = bytes(self._text) or self._replaced
        kind = bytes if self._shown_at is None else Redrawn
        self._reset()
        return [kind(rest)] if rest else []

    def _assemble(self, data: bytes) -> list[bytes]:
        lines = []
        # The pattern is one group: texts and breaks come in turns.
        for position, piece in enumerate(_BREAKS.split(data)):
            if position % 2 == 0:
                self._text += piece
                while len(self._text) > MAX_LINE_BYTES:
                    lines.append(bytes(self._text[:MAX_LINE_BYTES]))
                    del self._text[:MAX_LINE_BYTES]
            elif piece.endswith(b"\n"):
                lines += self._end_line()
            elif piece.endswith(b"\r"):
                lines += self._redraw()
            else:
                text = self._text.decode("utf-8", "surrogateescape")
                text = text[: -len(piece)]
                self._text[:] = text.encode("utf-8", "surrogateescape")
        return lines

    def _end_line(self) -> list[bytes]:
        text, redrawn = bytes(self._text), self._shown_at is not None
        if redrawn:
            text = (text or self._replaced).rstrip(b" ")
        self._reset()
        if redrawn:
            return [Redrawn(text)] if text else []
        return [text]

    def _redraw(self) -> list[bytes]:
        now = self._clock()
        if self._shown_at is None:
            self._shown_at = now
        self._replaced = bytes(self._text) or self._replaced
        self._text.clear()
        if not self._replaced or now - self._shown_at < REDRAW_SECONDS:
            return []
        self._shown_at = now
        line, self._replaced = self._replaced, b""
        return [Redrawn(line.rstrip(b" "))]

    def _reset(self) -> None:
        self._text.clear()
        self._replaced = b""
        self._shown_at = None


def without_escapes(line: bytes) -> bytes:
    """Returns a line without the escape sequences of terminals."""
    return _ESCAPES.sub(b"", line)
