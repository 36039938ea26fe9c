"""Every optimizer does the same on servers as in plain Keras, step by step."""

import numpy as np
import pytest

from tests import nightly
from tests.strategies import optimizer_cases
from tests.strategies.trained_on_servers import train_on_servers
import tfdist

CASES = list(optimizer_cases.CASES)
ON_SERVERS = optimizer_cases.ON_SERVERS


def assert_same(found, expected, tolerance=1e-6):
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        # Relative to the largest element, and to each element.
        np.testing.assert_allclose(
            found[key],
            values,
            rtol=tolerance,
            atol=tolerance * float(np.max(np.abs(values), initial=0.0)),
            err_msg=key,
        )


# All that optimizers have, together: `tests.fused_kernels_test`; scaled losses:
# `tests.runtime.exchange.nonfinite_test`.
SOME = ["MultiOptimizer"]
SOME_OR_ALL = nightly.also(SOME, [name for name in CASES if name not in SOME])


# What is trained on servers below is not trained here as well, but in `SOME`.
@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    [name for name in CASES if name in SOME or name not in ON_SERVERS],
)
def test_trains_as_without_a_strategy(name):
    strategy = tfdist.AsyncStrategy()
    found = optimizer_cases.train(name, strategy.scope())
    plain = optimizer_cases.plain(name)
    assert_same(found, plain)
    assert strategy.updates_applied()[0] > 0
    # Equal results would prove nothing if nothing happened.
    assert plain["loss 0"].shape == (optimizer_cases.STEPS,)
    assert np.all(np.isfinite(plain["loss 0"]))
    weights = [v for key, v in plain.items() if key.startswith("weight")]
    moved = [np.max(np.abs(values[-1] - values[0])) for values in weights]
    assert len(weights) == 8 and min(moved) > 1e-7


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("on_servers")
    train_on_servers(optimizer_cases, directory, ON_SERVERS)
    return directory


@pytest.mark.nightly
@pytest.mark.parametrize("name", ON_SERVERS)
def test_trains_on_servers_as_without_a_strategy(name, trained):
    with np.load(trained / f"{ON_SERVERS.index(name)}.npz") as arrays:
        found = dict(arrays)
    assert_same(found, optimizer_cases.plain(name))


def test_discovery_finds_the_optimizers():
    found = optimizer_cases.EVERY_OPTIMIZER
    assert {"SGD", "Adam", "Ftrl", "Muon", "LossScaleOptimizer"} <= set(found)
    assert "Optimizer" not in found and "OptimizerMap" not in found


@pytest.mark.nightly
def test_loss_scale_falls_and_rises():
    plain = optimizer_cases.plain("loss scale overflows")
    (scale,) = (
        values
        for values in plain.values()
        if values.ndim == 1 and values[0] > 1e4
    )
    changes = np.diff(np.log2(scale))
    assert 1.0 in changes and -1.0 in changes
