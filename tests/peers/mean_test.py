"""The mean of all workers' parameters, without processes."""

import types

import numpy as np
import pytest

from tfdist.peers import mean

ROSTER = types.SimpleNamespace(names=["first", "second", "third"])


@pytest.fixture
def made():
    return mean.MeanOfWorkers(ROSTER, None, "mean", "CPU:0", 1.0)


def test_the_mean_is_without_what_is_not_finite(made, caplog):
    one, other = np.ones(2), np.full(2, 3.0)
    bad = np.array([1.0, np.nan])
    assert made._finite({0: one, 1: bad, 2: other}) == [one, other]
    assert "Parameters of second are not finite: the mean is" in caplog.text


def test_what_is_finite_nowhere_stays(made, caplog):
    bad = np.array([1.0, np.inf])
    assert made._finite({0: bad, 2: bad}) == [bad, bad]
    assert "Parameters of third are not finite." in caplog.text
