"""What is evaluated and gone on from meets constraints, as workers' steps do.

The gradient is the datum, the rate is one, and the weight begins with one.
"""

import keras
import pytest

from tests.all_reduce.programs import Mean
from tests.all_reduce.programs import batches
import tfdist

# By name, a strategy, data, and the weight after each exchange.
CASES = {
    # The outer optimizer goes further than the worker: 1 - 0.7 * 1.9.
    "an outer optimizer": (
        lambda: tfdist.DiLoCoStrategy(period=1),
        [1.0, -1.0],
        # The outer momentum is 1, then 0.9 - 1.
        [0.0, 0.7 * (1.0 + 0.9 * 0.1)],
    ),
    # The worker's own weight is 1, 2, 0, with the force max(0 - 0.9, 0); the
    # centre moves towards the weight before the step.
    "an elastic force": (
        lambda: tfdist.ElasticAveragingStrategy(period=1, moving_rate=0.9),
        [-1.0, 5.0, 0.0],
        [1.0, 1.9, 0.19],
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["an elastic force", "an outer optimizer"])
def test_parameters_meet_constraints_after_an_exchange(name):
    make, data, wanted = CASES[name]
    strategy = make()
    with strategy.scope():
        layer = keras.layers.Dense(
            1,
            use_bias=False,
            kernel_initializer="ones",
            kernel_constraint="non_neg",
        )
        model = keras.Sequential([keras.Input([1]), layer])
        model.compile(keras.optimizers.SGD(1.0), Mean())
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(
            model.get_weights()[0].item()
        )
    )
    model.fit(batches(data), callbacks=[note], verbose=0)
    assert seen == pytest.approx(wanted, abs=1e-6)
