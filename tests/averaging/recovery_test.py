"""Local steps whose push was lost with a server are not sent once more."""

import types

import numpy as np
import pytest

from tests import nightly
from tests.averaging.virtual_workers import VirtualWorkers
from tests.runtime.exchange import delay_test
from tfdist import averaging
from tfdist.runtime.recovery import server_loss

PERIOD = 3
METHODS = {
    "weights": averaging.ParameterAveraging(PERIOD),
    "gradients": averaging.AccruedGradients(
        n_fetch=PERIOD, n_push=PERIOD, outer_optimizer="sgd"
    ),
    "own weights": averaging.ElasticAveraging(period=PERIOD, alpha=0.5),
}


def recover(runtime):
    """What a worker does of itself when all servers are there again."""
    server_loss.Recovery._refresh(types.SimpleNamespace(_runtime=runtime), [])


@pytest.mark.parametrize(
    "method", nightly.also(["weights"], ["gradients", "own weights"])
)
def test_steps_before_a_recovery_are_not_pushed_after_it(method):
    made = VirtualWorkers(2, METHODS[method])
    disturbed, other = made.runtimes
    data = delay_test.batches(2 * PERIOD + 2, seed=3)
    # Its own first exchange, so that there is something of it on servers.
    for batch in data[:PERIOD]:
        made.step(0, *batch)
    # Steps that may be on their way to a server that is killed.
    for batch in data[PERIOD : PERIOD + 2]:
        made.step(0, *batch)
    assert disturbed.local.unpushed()
    (before,) = other.updates_applied()
    other.pull()
    held = made.weights(1)

    recover(disturbed)
    assert not disturbed.local.unpushed()
    disturbed.local.flush()
    assert other.updates_applied() == [before]
    other.pull()
    np.testing.assert_array_equal(made.weights(1), held)

    # A whole period lies between this and its next push.
    exchanges = [made.step(0, *batch) for batch in data[PERIOD + 2 :]]
    assert [len(each) for each in exchanges] == [0, 0, 1]
    assert exchanges[-1][0].local_steps == PERIOD
    (counted,) = other.updates_applied()
    assert counted == before + 1
    if not METHODS[method].keeps_own:
        # It is of the steps since then alone.
        other.pull()
        twin = VirtualWorkers(2, METHODS[method])
        for batch in [*data[:PERIOD], *data[PERIOD + 2 :]]:
            twin.step(0, *batch)
        twin.runtimes[1].pull()
        np.testing.assert_allclose(made.weights(1), twin.weights(1), rtol=1e-6)
        assert (made.weights(1) != held).all()
