"""What replicas must hold, from what all workers report."""

import numpy as np

from tests.peers import programs


def sum_of(reports, applied=None):
    """The weights with all updates of all workers.

    Args:
        reports: By number of a worker.
        applied: Number of a lost worker -> its updates that count.
    """
    total = np.zeros(programs.ROWS * programs.COLUMNS)
    for worker, report in reports.items():
        total += report["steps"] * programs.gradient(worker).ravel()
        total -= report["residual"]
    for worker, number in (applied or {}).items():
        total += number * programs.gradient(worker).ravel()
    return -programs.RATE * total
