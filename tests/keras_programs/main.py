"""Runs rows of the table under methods; writes the document.

    python -m tests.keras_programs.main --columns=async,sync --rows=one_fit
    python -m tests.keras_programs.main --write_docs

Prints each cell as it is found, and ends with 1 if one is not as expected.
"""

import pathlib
import tempfile
import time

from absl import app
from absl import flags

from tests.keras_programs import document
from tests.keras_programs import runs
from tests.keras_programs.columns import COLUMNS
from tests.keras_programs.rows import ROWS
from tests.multi_process import real_cluster

_COLUMNS = flags.DEFINE_list("columns", ["all"], "Names of columns, or `all`.")
_ROWS = flags.DEFINE_list("rows", ["all"], "Names of rows or groups, or `all`.")
_WRITE_DOCS = flags.DEFINE_bool(
    "write_docs", False, "Write docs/compatibility.md, and run nothing."
)


def main(argv):
    """Runs what is asked for."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}")
    if _WRITE_DOCS.value:
        document.PATH.write_text(document.text(), "utf-8")
        return 0
    columns = _COLUMNS.value if _COLUMNS.value != ["all"] else list(COLUMNS)
    wanted = set(_ROWS.value)
    names = [
        name for name, row in ROWS.items() if wanted & {"all", name, row.group}
    ]
    known = {"all", *ROWS, *(row.group for row in ROWS.values())}
    if unknown := sorted(wanted - known):
        raise app.UsageError(f"--rows: unknown {', '.join(unknown)}")
    if unknown := sorted(set(columns) - set(COLUMNS)):
        raise app.UsageError(f"--columns: unknown {', '.join(unknown)}")
    bad = 0
    zygote = real_cluster.shared_zygote()
    for column in columns:
        began = time.monotonic()
        mine = [name for name in names if COLUMNS[column].has(name)]
        with tempfile.TemporaryDirectory() as directory:
            for name, reports in runs.reports_of(
                zygote, pathlib.Path(directory), column, mine
            ):
                found = ROWS[name].problem(column, reports)
                bad += bool(found)
                seconds = time.monotonic() - began
                what = f"NOT AS EXPECTED: {found}" if found else "as expected"
                print(f"{column} {name} {seconds:.1f} s: {what}", flush=True)
    print(f"cells that are not as expected: {bad}")
    return int(bool(bad))


if __name__ == "__main__":
    app.run(main)
