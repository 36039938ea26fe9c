"""Models of Keras's public examples train as in plain Keras."""

import contextlib
import functools

import numpy as np
import pytest

from tests.strategies import model_cases
from tests.strategies.trained_on_servers import train_on_servers
from tests.strategies.twins import assert_same
import tfdist

TOLERANCE = 1e-5


@functools.cache
def _plain(name):
    return model_cases.train(name, contextlib.nullcontext())


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(model_cases.CASES))
def test_trains_as_without_a_strategy(name):
    strategy = tfdist.AsyncStrategy()
    found = model_cases.train(name, strategy.scope())
    assert_same(found, _plain(name), TOLERANCE)
    steps = model_cases.EPOCHS * model_cases.EXAMPLES // model_cases.BATCH
    optimizers = 2 if "gan" in name else 1
    assert strategy.updates_applied() == [steps * optimizers]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("on_servers")
    train_on_servers(model_cases, directory, model_cases.ON_SERVERS)
    return directory


@pytest.mark.nightly
@pytest.mark.parametrize("name", model_cases.ON_SERVERS)
def test_trains_on_servers_as_without_a_strategy(name, trained):
    number = model_cases.ON_SERVERS.index(name)
    with np.load(trained / f"{number}.npz") as arrays:
        found = list(arrays.values())
    assert_same(found, _plain(name), TOLERANCE)
