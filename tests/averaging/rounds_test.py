"""Synchronous methods against NumPy, with workers that really wait.

Batches of the workers are of different sizes, so that a mean that is not
weighted by examples is another one.
"""

import dataclasses

import keras
import numpy as np
import pytest

from tests.averaging import oracles
from tests.averaging.virtual_workers import VirtualWorkers
from tests.averaging.virtual_workers import linear
from tests.runtime.exchange import delay_test
import tfdist
from tfdist.averaging import ElasticAveraging
from tfdist.synchronization import Sync

START = np.array([1.0] * delay_test.FEATURES + [0.0])
SIZES = (4, 2)  # Of the batches of each worker.
RATE, PERIOD, ROUNDS = 0.05, 3, 3
NUMBER = len(SIZES)


def batches(sizes, steps, seed=0):
    """By worker, lists of (x, y)."""
    random = np.random.default_rng(seed)
    return [
        [
            (
                random.normal(size=(size, delay_test.FEATURES)).astype("f"),
                random.normal(size=(size, 1)).astype("f"),
            )
            for _ in range(steps)
        ]
        for size in sizes
    ]


def momentum():
    return keras.optimizers.SGD(RATE, momentum=0.9)


def nesterov():
    return keras.optimizers.SGD(RATE, momentum=0.9, nesterov=True)


def adam():
    return keras.optimizers.Adam(RATE)


def adamw():
    return keras.optimizers.AdamW(RATE, weight_decay=0.1)


INNERS = {
    momentum: lambda: oracles.Sgd(RATE, 0.9),
    nesterov: lambda: oracles.Sgd(RATE, 0.9, nesterov=True),
    adam: lambda: oracles.Adam(RATE),
    adamw: lambda: oracles.Adam(RATE, 0.1),
}


@dataclasses.dataclass
class Case:
    """A method, what becomes of the mean, and of the inner optimizers."""

    method: object
    inner: object
    outer: object = oracles.Mean
    state: str = "local"


def preset(name, **arguments):
    """The `LocalSteps` of a strategy that users make."""
    return getattr(tfdist, name)(PERIOD, **arguments).local_steps


CASES = {
    "averaging, Adam local": Case(
        lambda: preset("ParameterAveragingStrategy"), adam
    ),
    "averaging, Adam averaged": Case(
        lambda: preset(
            "ParameterAveragingStrategy", average_optimizer_state=True
        ),
        adam,
        state="averaged",
    ),
    "BMUF": Case(
        lambda: preset("BMUFStrategy"),
        momentum,
        lambda: oracles.Bmuf(START, 1 - 1 / NUMBER),
        "reset",
    ),
    "BMUF, not ahead": Case(
        lambda: preset(
            "BMUFStrategy",
            nesterov=False,
            block_momentum=0.7,
            block_rate=0.8,
            reset_momentum=False,
        ),
        momentum,
        lambda: oracles.Bmuf(START, 0.7, 0.8, nesterov=False),
    ),
    "DiLoCo": Case(
        lambda: preset("DiLoCoStrategy"), adamw, lambda: oracles.DiLoCo(START)
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    sorted(CASES),
)
def test_what_becomes_of_the_mean_of_the_weights(name):
    case = CASES[name]
    oracle = oracles.Averaging(
        START,
        NUMBER,
        delay_test.gradient,
        INNERS[case.inner],
        case.outer(),
        case.state,
    )
    run = VirtualWorkers(NUMBER, case.method(), Sync(), linear(case.inner))
    for seed in range(ROUNDS):
        data = batches(SIZES, PERIOD, seed)
        exchanges = run.round(data)
        wanted = oracle.round(data)
        for k, (exchange,) in enumerate(exchanges):
            assert exchange.local_steps == PERIOD
            np.testing.assert_allclose(
                run.weights(k), wanted, rtol=2e-5, atol=2e-6
            )
    assert run.runtimes[0].updates_applied() == [ROUNDS]
    for model in run.models:
        assert model.optimizer.iterations.numpy() == ROUNDS * PERIOD


@pytest.mark.nightly
def test_elastic_averaging_with_momentum():
    """EAMSGD; without momentum see `laws_test`."""
    oracle = oracles.ElasticSync(
        START, NUMBER, delay_test.gradient, INNERS[nesterov], 0.3, PERIOD
    )
    method = ElasticAveraging(PERIOD, moving_rate=0.3 * NUMBER)
    run = VirtualWorkers(NUMBER, method, Sync(), linear(nesterov))
    data = batches(SIZES, 3 * PERIOD)
    for step in range(3 * PERIOD):
        now = [mine[step] for mine in data]
        run.round([[batch] for batch in now])
        oracle.step(now)
        for k in range(NUMBER):
            np.testing.assert_allclose(
                run.own_weights(k), oracle.own[k], rtol=2e-5, atol=2e-6
            )
            # What is shown is the centre.
            np.testing.assert_allclose(
                run.weights(k), oracle.centre, rtol=2e-5, atol=2e-6
            )


class Call:
    """A `RunningFit` that is under way."""

    def is_over(self):
        return False

    def is_around(self, frame):
        del frame
        return False


@pytest.mark.nightly
def test_a_fit_after_an_exception_begins_with_the_updates_of_the_others():
    """Else its first push would be late, and all of it be dropped."""
    run = VirtualWorkers(2, preset("ParameterAveragingStrategy"), Sync())
    run.round(batches(SIZES, PERIOD))
    failed, other = run.runtimes[1], run.runtimes[0]
    # Its `fit` fails in the middle of a period, and the other one goes on.
    run.step(1, *batches(SIZES, 1)[1][0])
    failed.coordination.leave()
    for batch in batches(SIZES, PERIOD)[0]:
        run.step(0, *batch)
    other.coordination.leave()
    for runtime in run.runtimes:
        runtime.watch(Call(), None)
    np.testing.assert_array_equal(run.weights(1), run.weights(0))
    exchanges = run.round(batches(SIZES, PERIOD))
    assert [one.accepted for (one,) in exchanges] == [True, True]
    # Steps that nobody has overtaken go on.
    run.step(1, *batches(SIZES, 1)[1][0])
    failed.watch(Call(), None)
    assert failed.local.unpushed()
