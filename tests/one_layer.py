"""Fixtures: a strategy, and a model of one layer that trains by it."""

import keras
import numpy as np
import pytest

import tfdist

X, Y = np.ones([8, 3]), np.ones([8, 1])


@pytest.fixture(scope="module")
def strategy():
    return tfdist.AsyncStrategy()


def build(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


@pytest.fixture(scope="module")
def model(strategy):
    """A model that tests train in turns, traced once."""
    return build(strategy)
