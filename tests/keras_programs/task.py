"""What a worker runs: rows one after the other, in one process."""

import json
import os
import pathlib
import traceback

import keras

from tests.keras_programs import kit
from tests.keras_programs.columns import COLUMNS
from tests.keras_programs.rows import ROWS
from tests.keras_programs.table import Refused
from tests.keras_programs.table import Wrong
import tfdist
from tfdist.cluster import member_table


def run(column, names, worker_timeout):
    """Runs rows; adds a line of JSON for each to a file.

    It ends after a row that raises and is not expected to: what the next one
    would find is not what it is written for.

    Args:
        column: name of a column.
        names: of rows.
        worker_timeout: after which a worker that says nothing is lost, to
            the strategy and to whoever waits for the end, in seconds.
    """
    member_table.LOST_AFTER_SECONDS = worker_timeout
    strategy = COLUMNS[column].make(
        seed=1,
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=60.0,
            worker_timeout=worker_timeout,
            stall_timeout=60.0,
        ),
    )
    worker = strategy.cluster.worker_id
    outcomes = pathlib.Path(f"{os.environ['TASK_LABEL']}.rows")
    for name in names:
        keras.backend.clear_session()
        print("row", name, flush=True)
        kit.begin(name)
        one = ROWS[name]
        expected = one.cell(column)
        goes_on = not isinstance(expected, Wrong)
        try:
            outcome = {"value": one.program(strategy, worker)}
        except Exception as error:  # It is the outcome.
            traceback.print_exc()
            outcome = {"error": f"{type(error).__name__}: {error}"}
            goes_on = isinstance(expected, Refused)
        if goes_on and not one.dies:
            strategy.barrier()
        with outcomes.open("a") as file:
            file.write(json.dumps([name, outcome]) + "\n")
        if not goes_on:
            return
