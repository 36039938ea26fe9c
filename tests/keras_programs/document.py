"""`docs/compatibility.md`, as text made from the table."""

import pathlib

from tests.keras_programs.columns import COLUMNS
from tests.keras_programs.columns import KINDS
from tests.keras_programs.rows import GROUPS
from tests.keras_programs.rows import ROWS
from tests.keras_programs.table import Documented
from tests.keras_programs.table import Loose
from tests.keras_programs.table import NotTried
from tests.keras_programs.table import Refused
from tests.keras_programs.table import Wrong

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PATH = DOCS / "compatibility.md"
_STATES = {
    Loose: "~",
    Refused: "r",
    Documented: "d",
    Wrong: "-",
    NotTried: ".",
}
_BEGINNING = """\
# Compatibility: which programs work with which methods

In the tables below, each row is a Keras program and each column is a training
method. A cell says what happens if two workers run the program with this
method, and with one server if the method needs servers. `make nightly` runs all
cells, and compares the results with exact arithmetic; `make test` runs one
program under each of four methods. `python -m tests.keras_programs.main
--write_docs` makes this page from the tables in `tests/keras_programs/`.

| | |
| --- | --- |
| + | both workers get exactly the result that the method's rule predicts |
| ~ | the result depends on timing; only its sign and counts are checked |
| r | refused with an error; a note below the table quotes it |
| d | another result, as documented; a note below the table quotes it |
| - | a wrong result, which is a known bug |
| . | does not apply |

The columns, and what each method does with the two workers' gradients:

"""


def text():
    """The whole document."""
    lines = ["| column | method | rule |", "| --- | --- | --- |"]
    for number, column in enumerate(COLUMNS.values(), 1):
        kind = KINDS[column.kind]
        lines.append(f"| {number} | `{column.code}` | {kind} |")
    parts = [_BEGINNING + "\n".join(lines)]
    parts += [_group(group, title) for group, title in GROUPS.items()]
    return "\n\n".join(parts) + "\n"


def counts():
    """Number of cells of each state."""
    found = dict.fromkeys("+~rd-.", 0)
    for row in ROWS.values():
        for column in COLUMNS:
            found[_state(row.cell(column))] += 1
    return found


def _group(group, title):
    rows = [row for row in ROWS.values() if row.group == group]
    numbers = range(1, len(COLUMNS) + 1)
    lines = [
        f"## {title}",
        "",
        f"| | {' | '.join(map(str, numbers))} |",
        f"| --- |{' --- |' * len(COLUMNS)}",
    ]
    for row in rows:
        states = (_state(row.cell(column)) for column in COLUMNS)
        lines.append(f"| {row.title} | {' | '.join(states)} |")
    notes = _notes(rows)
    return "\n".join([*lines, "", *notes] if notes else lines)


def _state(cell):
    return _STATES.get(type(cell), "+")


def _notes(rows):
    """Lines about cells that are neither right nor empty, like ones as one."""
    found = {}
    for row in rows:
        numbers = {}
        for number, column in enumerate(COLUMNS, 1):
            cell = row.cell(column)
            if _state(cell) in "rd-":
                numbers.setdefault(_note(cell), []).append(number)
        for note, where in numbers.items():
            found.setdefault((note, tuple(where)), []).append(row.title)
    lines = []
    for (note, numbers), titles in found.items():
        where = ", ".join(map(str, numbers))
        what = "column" if len(numbers) == 1 else "columns"
        lines += [
            f"- {note} ({what} {where}):",
            f"  {'; '.join(titles)}.",
        ]
    return lines


def _note(cell):
    if isinstance(cell, Refused):
        texts = cell.text.split("|")
        return "Refused with " + " or ".join(f'"{text}"' for text in texts)
    if isinstance(cell, Documented):
        document = f"[{cell.document}]({cell.document})"
        return f'Another result: "{cell.sentence}", {document}'
    return cell.what
