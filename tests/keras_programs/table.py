"""The rows, and what is expected of each under each method.

A row is a Keras program of at most 25 lines: a function of a strategy and a
worker's number that returns numbers. In each cell stands one of

- right: on both workers what arithmetic says of the method's kind;
- refused: an error, whose text is matched;
- documented: something else, which a sentence of the documents says;
- wrong: known, with a description. It is not right, and nobody says so.
"""

from collections.abc import Callable
import dataclasses
import re
from typing import Any

import numpy as np

from tests.keras_programs.columns import COLUMNS

MOST_LINES = 25


@dataclasses.dataclass(frozen=True)
class Each:
    """An expectation that is another one for each worker.

    Attributes:
      values: Of each worker.
    """

    values: tuple

    def __add__(self, other):
        others = other.values if isinstance(other, Each) else [other] * 2
        pairs = zip(self.values, others, strict=True)
        return Each(tuple(mine + theirs for mine, theirs in pairs))

    def __rmul__(self, factor):
        return Each(tuple(factor * value for value in self.values))

    def __neg__(self):
        return -1.0 * self


@dataclasses.dataclass(frozen=True)
class NotTried:
    """A program that means nothing under a method."""


@dataclasses.dataclass(frozen=True)
class Refused:
    """An error of both workers.

    Attributes:
      text: Part of the error's text.
    """

    text: str


@dataclasses.dataclass(frozen=True)
class Documented:
    """Another value than that of the kind.

    Attributes:
      value: The value.
      document: File in `docs`.
      sentence: Part of it.
    """

    value: Any
    document: str
    sentence: str


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A fault of the product that is known.

    Attributes:
      what: What happens.
    """

    what: str


@dataclasses.dataclass(frozen=True)
class Row:
    """A program.

    Attributes:
      name: Of its function.
      program: The function.
      title: What it does, for the document.
      group: Name of the rows' module.
      expected: Name of a column or of a kind -> what is expected.
      dies: Whether the second worker does, and reports nothing.
    """

    name: str
    program: Callable
    title: str
    group: str
    expected: dict
    dies: bool = False

    def cell(self, column):
        """What is expected under a method: a value, or one of the above.

        Args:
            column: name of a column.

        Raises:
            KeyError: nothing is.
        """
        if not COLUMNS[column].has(self.name):
            return NotTried()
        for key in (column, COLUMNS[column].kind):
            if key in self.expected:
                return self.expected[key]
        if COLUMNS[column].kind == "loose":
            return Loose(self.expected["sum"])
        if COLUMNS[column].kind == "sent":
            return self.expected["sum"]
        if COLUMNS[column].kind == "pairs":
            return self.expected["half"]
        raise KeyError(f"{self.name} says nothing of {column}")

    def problem(self, column, reports):
        """What is not as expected of a cell, or "": see `problem`."""
        if not self.dies:
            return problem(self.cell(column), reports)
        if reports[1] is not None:
            return f"worker 1 was to be killed, and reports {reports[1]}"
        return problem(self.cell(column), reports[:1])


@dataclasses.dataclass(frozen=True)
class Loose:
    """Numbers of which whole ones are exact, and others have the sign.

    Attributes:
      like: What they would be if no gradient were late.
    """

    like: Any


ROWS: dict[str, Row] = {}


def row(expected, dies=False, **others):
    """Decorator of a program.

    Args:
        expected: kind -> value.
        dies: see `Row`.
        **others: name of a column, or of a kind, -> what is expected there.
    """

    def add(program):
        module = program.__module__.rsplit(".", 1)[-1]
        ROWS[program.__name__] = Row(
            program.__name__,
            program,
            program.__doc__.strip().splitlines()[0].rstrip("."),
            module,
            {**expected, **others},
            dies,
        )
        return program

    return add


def of(columns, what):
    """`what` for each of some columns, for `row`."""
    return dict.fromkeys(columns, what)


def problem(expected, reports):
    """What is not as expected of a cell, or "".

    Args:
        expected: what `Row.cell` has given.
        reports: of each worker `{"value": ...}`, `{"error": text}` or None,
            where it has not come to its end.
    """
    if isinstance(expected, Wrong):
        return ""
    if isinstance(expected, Refused):
        errors = [(r or {}).get("error", "") for r in reports]
        if all(re.search(expected.text, error) for error in errors):
            return ""
        return f"expected the error {expected.text!r}, reported {reports}"
    if any("value" not in (report or {}) for report in reports):
        return f"reported {reports}"
    if isinstance(expected, Documented):
        expected = expected.value
    for worker, report in enumerate(reports):
        mine, value = expected, report["value"]
        if isinstance(mine, Loose):
            if not _are_like(value, _of_worker(mine.like, worker)):
                wanted = _leaves(_of_worker(mine.like, worker))
                return f"worker {worker}: {value}, not like {wanted}"
        elif not _equal(value, _of_worker(mine, worker)):
            wanted = _leaves(_of_worker(mine, worker))
            return f"worker {worker}: {value}, expected {wanted}"
    return ""


def _of_worker(expected, worker):
    return expected.values[worker] if isinstance(expected, Each) else expected


def _leaves(value):
    # What takes long to find out is a function without arguments.
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in _leaves(part)]
    return [value() if callable(value) else value]


def _equal(value, expected):
    have, want = _leaves(value), _leaves(expected)
    return len(have) == len(want) and all(
        h == w
        if isinstance(w, str | int)
        else isinstance(h, float | int) and np.isclose(h, w, rtol=1e-5)
        for h, w in zip(have, want, strict=True)
    )


def _are_like(value, expected):
    have, want = _leaves(value), _leaves(expected)
    return len(have) == len(want) and all(
        h == w
        if isinstance(w, str | int)
        else np.isfinite(h) and np.sign(h) == np.sign(w)
        for h, w in zip(have, want, strict=True)
    )
