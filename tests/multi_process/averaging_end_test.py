"""Real workers whose training ends in the middle of a period."""

import numpy as np
import pytest

pytestmark = pytest.mark.nightly

PERIOD, VALUE = 4, 2.0
STEPS = [6, 11]


def test_what_is_left_is_exchanged_while_a_script_does_something_else(cluster):
    """And nobody waits for a worker whose `fit` is over, nor loses a step."""
    made = cluster(num_ps=2, num_workers=2)
    made.start_servers()
    workers = made.start_workers(
        "averaging_end_tasks:train", steps=STEPS, value=VALUE, period=PERIOD
    )
    for number in range(3):
        # Neither waits for the test in anything but its own code.
        for worker in workers:
            worker.expect(f"trained {number}")
        made.tell(f"go on {number}")
    made.finish()
    first, second = [worker.report() for worker in workers]
    for report, steps in ((first, STEPS[0]), (second, STEPS[1])):
        assert sum(e["local_steps"] for e in report["exchanges"]) == 3 * steps
        assert report["iterations"] == 3 * steps
        # Heartbeats, ticks, manifests: none of them enters the eager runtime.
        assert len(report["threads"]) >= 3, report["threads"]
        assert report["eager_calls"] == []
    assert first["updates"] == second["updates"]
    # In each `fit` what is left of one counts by its steps in the second
    # average, and the last steps of the other are an average by themselves.
    moved = 2 * VALUE * (4 + (2 * 2 + 4 * 4) / (2 + 4) + 3)
    # When `fit` fails, the other goes on without what is left, which is too
    # late when the script asks for it.
    moved += VALUE * (4 + 4 + 3)
    late = first["exchanges"].pop()
    assert not late["accepted"] and late["local_steps"] == 2
    for exchange in first["exchanges"] + second["exchanges"]:
        assert exchange["accepted"] and not exchange["staleness"]
    for report in (first, second):
        np.testing.assert_allclose(report["weights"], -moved, rtol=1e-6)
