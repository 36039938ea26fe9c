"""The file of a flag `--json`, for all figures of a sub-command."""

import json
import pathlib
from typing import Any

from tfdist.cli import usage


def check(path: str | None) -> None:
    """Refuses, before anything is measured, what can be no such file.

    Args:
        path: the value of the flag.

    Raises:
        UsageError: it is a directory, or in none.
    """
    if path is None:
        return
    usage.check(
        pathlib.Path(path).absolute().parent.is_dir()
        and not pathlib.Path(path).is_dir(),
        "json",
        "be a file in a directory that exists",
        path,
    )


def write(path: str, figures: dict[str, Any]) -> None:
    """Writes figures as JSON.

    Args:
        path: the value of the flag.
        figures: what is written; numbers of NumPy's are taken for floats.

    Raises:
        UsageError: the file cannot be written.
    """
    text = json.dumps(figures, indent=2, default=float)
    try:
        pathlib.Path(path).write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise usage.UsageError(
            "Flag --json must be a file that can be written. Received: "
            f"--json={path}: {error.strerror}."
        ) from error
