"""Clusters that run rows, and start again where one hangs or fails."""

import itertools
import json
import time

from tests.keras_programs import rows as rows_lib
from tests.keras_programs import table
from tests.keras_programs.columns import COLUMNS
from tests.multi_process import real_cluster

# Of one row on a machine that does other things as well.
SECONDS = 120.0
_POLL_SECONDS = 0.05


def reports_of(zygote, directory, column, names):
    """Runs rows under a method on two workers.

    Args:
        zygote: the fixture.
        directory: an empty `pathlib.Path`.
        column: name of a column.
        names: of rows.

    Yields:
        A row's name, and of each worker `{"value": ...}`, `{"error": text}`, or
        None if it did not come to its end.
    """
    rest = [name for name in names if not rows_lib.ROWS[name].dies]
    deadly = [name for name in names if rows_lib.ROWS[name].dies]
    for number in itertools.count():
        if not rest and not deadly:
            return
        place = directory / str(number)
        place.mkdir()
        if rest:
            running = _run(zygote, place, column, rest)
        else:
            running = _run(zygote, place, column, [deadly.pop()], 6.0)
        done = 0
        for name, reports in running:
            yield name, reports
            done += 1
        rest = rest[done:]


def _run(zygote, directory, column, names, worker_timeout=60.0):
    """Runs rows until one leaves a cluster that cannot be used."""
    with real_cluster.ClusterUnderTest(
        zygote, directory, num_ps=COLUMNS[column].num_ps, num_workers=2
    ) as cluster:
        cluster.start_servers()
        workers = cluster.start_workers(
            "tests.keras_programs.task:run",
            column=column,
            names=names,
            worker_timeout=worker_timeout,
        )
        for number, name in enumerate(names):
            reports = _wait(workers, directory, number)
            dies = rows_lib.ROWS[name].dies
            if None in reports and not dies:
                for worker in workers:
                    print(f"{worker.label}:\n{worker.output()[-4000:]}")
            yield name, reports
            if None in reports or _ends(name, column, reports):
                return


def _ends(name, column, reports):
    """Whether the workers have ended after a row, as `task.run` does."""
    expected = rows_lib.ROWS[name].cell(column)
    raised = any("error" in report for report in reports)
    return isinstance(expected, table.Wrong) or (
        raised and not isinstance(expected, table.Refused)
    )


def _wait(workers, directory, number):
    """The reports of a row, of each worker, or None after a while."""
    end = time.monotonic() + SECONDS
    while True:
        # In this order: what has ended has written all.
        running = [worker.runs() for worker in workers]
        found = [_lines(directory / f"{w.label}.rows") for w in workers]
        if all(len(lines) > number for lines in found):
            break
        waits = any(
            runs and len(lines) <= number
            for runs, lines in zip(running, found, strict=True)
        )
        if not waits or time.monotonic() > end:
            break
        time.sleep(_POLL_SECONDS)
    return [
        json.loads(lines[number])[1] if len(lines) > number else None
        for lines in found
    ]


def _lines(path):
    if not path.exists():
        return []
    # The last one may not be whole.
    return path.read_text().split("\n")[:-1]
