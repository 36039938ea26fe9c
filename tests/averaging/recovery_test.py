"""Local steps whose push was lost with a server are not sent once more."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.averaging.virtual_workers import VirtualWorkers
from tests.runtime.exchange import delay_test
import tfdist
from tfdist import averaging
from tfdist.runtime.coordination import agreement
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


@pytest.mark.nightly
def test_a_server_lost_in_the_first_step_leaves_one_outer_optimizer(
    monkeypatch,
):
    """Or else positions of variables are not those of other workers."""

    def made():
        strategy = tfdist.ParameterAveragingStrategy(PERIOD)
        with strategy.scope():
            model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        return strategy, model

    def again(function, *args):
        """As `Recovery.call` does."""
        while True:
            try:
                return function(*args)
            except tf.errors.UnavailableError:
                failed.append(function)

    def fails_once(*args):
        if not failed:
            raise tf.errors.UnavailableError(None, None, "it is gone")
        return agree(*args)

    x, failed, numbers = np.ones([2, 1], "float32"), [], []
    for is_disturbed in (False, True):
        strategy, model = made()
        if is_disturbed:
            agree = agreement.agree
            monkeypatch.setattr(agreement, "agree", fails_once)
            monkeypatch.setattr(strategy._runtime.recovery, "call", again)
        strategy.retry_on_server_failure(model.train_on_batch)(x, x)
        numbers.append(len(strategy._runtime.store.variables))
    assert len(failed) == 1
    assert numbers[0] == numbers[1]
