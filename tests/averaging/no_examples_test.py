"""Steps on batches without examples count, where nobody has others."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.strategies.twins import assert_same
import tfdist

PERIOD = 3
STRATEGIES = {
    "averaging": lambda: tfdist.ParameterAveragingStrategy(PERIOD),
    "state averaged": lambda: tfdist.ParameterAveragingStrategy(
        PERIOD, average_optimizer_state=True
    ),
    "ring": lambda: tfdist.ParameterAveragingStrategy(
        PERIOD, communication="ring", average_optimizer_state=True
    ),
    "ring that looks": lambda: tfdist.ParameterAveragingStrategy(
        PERIOD, communication="ring", nonfinite="ignore"
    ),
}


class Counting(keras.Model):
    """A model that also moves a statistic in each step."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.seen = self.add_weight(
            shape=(2,), initializer="ones", trainable=False, name="seen"
        )

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        self.seen.assign(0.9 * self.seen + 0.5)
        return super().train_step(data)


def train(scope, barrier=lambda: None):
    """Trains; the last exchange is of a batch without examples alone."""
    keras.utils.set_random_seed(1)
    with scope:
        model = Counting()
        model.compile(keras.optimizers.Adam(0.01), "mse")
        model(tf.zeros([1, 3]))
        model.optimizer.build(model.trainable_variables)
    x = np.arange(12.0, dtype=np.float32).reshape(4, 3) / 12
    for size in (4,) * PERIOD + (0,):
        model.train_on_batch(x[:size], x[:size, :1])
    barrier()
    return {
        "weights": model.get_weights(),
        "optimizer": [np.array(v) for v in model.optimizer.variables],
    }


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    nightly.also(
        ["state averaged"], sorted(set(STRATEGIES) - {"state averaged"})
    ),
)
def test_a_mean_of_no_examples_is_one_of_steps(name):
    strategy = STRATEGIES[name]()
    found = train(strategy.scope(), strategy.barrier)
    assert_same(found, train(contextlib.nullcontext()), 1e-6)
