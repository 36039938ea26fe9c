"""Calls that fail though all servers are there."""

import types

import pytest
import tensorflow as tf

from tfdist.cluster import reconnection


@pytest.mark.parametrize(
    ("error", "again"),
    [
        # What a server lacks another worker may be about to put back.
        (tf.errors.FailedPreconditionError, 5),
        (tf.errors.UnavailableError, 5),
        (tf.errors.InvalidArgumentError, 0),
    ],
)
def test_a_call_that_fails_beside_healthy_servers_is_made_again_a_few_times(
    monkeypatch, error, again
):
    now = [100.0]

    def sleep(seconds):
        now[0] += seconds

    clock = types.SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(reconnection, "time", clock)
    made = reconnection.Reconnection(None, None, 300.0)
    raised = error(None, None, "as a test says")
    for _ in range(again):
        made.check_hiccups(raised)
    with pytest.raises(error, match="as a test says"):
        made.check_hiccups(raised)
    # Others have had some seconds to put it back.
    assert (now[0] - 100.0 >= 2.5) == (again > 0)
