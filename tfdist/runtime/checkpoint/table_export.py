"""Export of tables to a directory: NumPy files of some rows each.

Whoever uses the rows elsewhere needs NumPy alone. Rows are looked up and
written piece by piece, so that a worker needs memory for one.
"""

import functools
import json
import os
import pathlib
import re

import numpy as np

from tfdist import saved_state
from tfdist.runtime.variables import dynamic_table
from tfdist.runtime.variables import row_index
from tfdist.runtime.variables.variables import Role

INDEX = "index.json"
"""Name of the file that says what is in the others."""

_FORMAT = "tfdist-tables"
_VERSION = 1
_PREFIX = "export-"
# Names of files, the group is the export's number. Others are the user's.
_OWN = re.compile(
    rf"{_PREFIX}(\d+)-(?:index|table-\d+-\d{{6,}}(?:\.ids)?\.npy)"
)
PIECE_BYTES = 64 << 20
"""Bytes of the rows in one file, about."""


def tables_of(variables):
    """Returns the tables among variables, without slots of optimizers.

    Args:
      variables: Variables of a `ParameterStore`, or of a model.
    """
    return [
        v
        for v in variables
        if getattr(v, "role", None) is Role.TABLE and not v.is_slot
    ]


def write(tables, directory, updates):
    """Writes tables to a directory; an export that is there is replaced.

    The index is written last, and replaces the one before in one step. So
    whoever opens it finds all that it names, whenever this process dies.

    Args:
      tables: List of `TableVariable` that servers hold.
      directory: Path of a directory, made if need be.
      updates: Number of updates that servers have applied, for the index.

    Raises:
      ValueError: There are none, or two have the same name.
      OSError: A file could not be written.
      TimeoutError: A server is gone. An export that was there stays.
    """
    names = [table.path for table in tables]
    if not tables:
        raise ValueError(
            "Argument `model` must have a table on parameter servers, as "
            "embeddings of `table_bytes` bytes or more are. Received: none"
        )
    if len(set(names)) < len(names):
        raise ValueError(
            "Argument `model` must be given where tables of several models "
            f"have the same name. Received: tables {names}"
        )
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    number = 1 + max((before for before, _ in _files(directory)), default=-1)
    own = f"{_PREFIX}{number}-"
    try:
        index = {
            "format": _FORMAT,
            "version": _VERSION,
            "updates": updates,
            "tables": [
                _write_table(table, directory, f"{own}table-{k}")
                for k, table in enumerate(tables)
            ],
        }
        draft = directory / f"{own}index"
        with draft.open("w") as file:
            json.dump(index, file, indent=1)
            _flush(file)
        draft.replace(directory / INDEX)
    except BaseException:
        for before, path in _files(directory):
            if before == number:
                path.unlink(missing_ok=True)
        raise
    for before, path in _files(directory):
        if before != number:
            path.unlink(missing_ok=True)


def _files(directory):
    """Pairs of the number of an export and a file that it has left."""
    for path in directory.glob(f"{_PREFIX}*"):
        if found := _OWN.fullmatch(path.name):
            yield int(found[1]), path


def _write_table(table, directory, name):
    """Writes the pieces of a table; returns its entry of the index."""
    pieces, written = [], 0
    for first, end in table.ranges_of_rows(PIECE_BYTES):
        if table.is_dynamic:
            read = functools.partial(table.columns["ids"].read_rows, first, end)
            steady = dynamic_table.SteadyIds(table, read)
            steady.begin()
        rows = table.read_rows(first, end)
        path = directory / f"{name}-{len(pieces):06d}.npy"
        piece = {"file": path.name}
        if table.is_dynamic:
            ids = steady.end()[:, 0]
            has = ids != row_index.EMPTY
            rows, ids = rows[has], ids[has]
            first, end = written, written + len(rows)
            piece["ids"] = path.with_suffix(".ids.npy").name
            _save(directory / piece["ids"], ids)
        written = end
        _save(path, saved_state.plain(rows))
        pieces.append({**piece, "first": first, "end": end})
    return {
        "name": table.path,
        "shape": [written, table.shape[1]],
        "dtype": table.dtype.name,
        "pieces": pieces,
    }


def _save(path, array):
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        _flush(file)


def _flush(file):
    file.flush()
    os.fsync(file.fileno())
