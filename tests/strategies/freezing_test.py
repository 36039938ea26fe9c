"""A layer that is frozen between two calls of `fit` with one optimizer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
import tfdist
from tfdist import correction
from tfdist import synchronization


def weights_of(strategy):
    """What three calls of `fit` come to; the second without a layer."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        first = keras.layers.Dense(2)
        model = keras.Sequential(
            [keras.Input((3,)), first, keras.layers.Dense(1)]
        )
        optimizer = keras.optimizers.SGD(0.05)
    random = np.random.default_rng(2)
    seen = []
    for trainable in (True, False, True):
        first.trainable = trainable
        with strategy.scope():
            model.compile(optimizer, "mse")
        x, y = random.normal(size=(12, 3)), random.normal(size=(12, 1))
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        seen += [weight.copy() for weight in model.get_weights()]
    return seen


@pytest.mark.parametrize(
    "arguments",
    nightly.also(
        [
            {"synchronization": synchronization.Sync()},
        ],
        [
            {"correction": correction.DelayCompensation(variance_decay=0.95)},
            {"synchronization": synchronization.SoftSync(1)},
        ],
    ),
    ids="sync correction softsync".split(),
)
def test_it_trains_as_without_a_strategy(arguments):
    expected = weights_of(tf.distribute.get_strategy())
    found = weights_of(tfdist.ParameterServerStrategy(**arguments))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
