"""A worker's log about the others, by states of the test's."""

import logging
import types

import numpy as np
import pytest

from tfdist.cluster import waiting
from tfdist.runtime.coordination import status_log
from tfdist.synchronization import BoundedStaleness
from tfdist.synchronization import Sync
from tfdist.synchronization.state import Phase
from tfdist.synchronization.state import Reason
from tfdist.synchronization.state import Status


class Ledger:
    """What a ledger is asked here."""

    num_enlisted = 2


def state(*gone):
    """Two workers that train; those of `gone`, pairs with reasons, do not."""
    made = types.SimpleNamespace(
        status=np.full([2], Status.JOINED),
        reason=np.full([2], Reason.NONE),
        phase=np.full([2], Phase.COMPUTING),
        order=np.zeros([2], np.int64),
        clock=np.zeros([2], np.int64),
    )
    for worker, reason in gone:
        made.status[worker], made.reason[worker] = Status.GONE, reason
    return made


@pytest.mark.parametrize(
    "reason, warnings", [(Reason.LEFT, 0), (Reason.SILENT, 2)]
)
def test_the_end_of_a_workers_data_is_no_warning(caplog, reason, warnings):
    ledger = Ledger()
    log = status_log.StatusLog(Sync(), ("a", "b"), 0, 10.0, 600.0)
    log.report(ledger, state())
    with caplog.at_level(logging.INFO, "absl"):
        log.report(ledger, state((1, reason)))
    levels = [record.levelno for record in caplog.records]
    assert levels == 2 * [logging.WARNING if warnings else logging.INFO]


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("phase", [Phase.COMPUTING, Phase.ARRIVED])
@pytest.mark.parametrize("method", [Sync(), BoundedStaleness(0)])
def test_workers_that_wait_for_each_other_say_why(
    caplog, monkeypatch, method, phase, is_ahead
):
    """In the ledgers of two optimizers, of which one has skipped a step."""
    monkeypatch.setattr(waiting, "REPORT_SECONDS", 1e-9)
    log = status_log.StatusLog(method, ("a", "b"), 0, 10.0, 600.0)
    first, second = Ledger(), Ledger()
    skipped, waits = state(), state()
    skipped.phase[1], skipped.clock[1] = phase, is_ahead
    waits.phase[0] = Phase.ARRIVED
    for _ in range(2):
        log.report(first, skipped)
        log.report(second, waits)
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith("Waiting for the gradients of b ")
    is_circle = phase == Phase.ARRIVED and (is_ahead or method.averages)
    assert ("b waits for this worker's gradient" in message) == is_circle
