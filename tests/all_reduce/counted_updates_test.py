"""`strategy.updates_applied` counts updates, not steps without one."""

import keras
import pytest
import tensorflow as tf

import tfdist

OPTIMIZERS = {
    "accumulates": lambda: keras.optimizers.SGD(gradient_accumulation_steps=3),
    "scales": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD()
    ),
}


@pytest.mark.parametrize("eagerly", [True, False], ids=["eagerly", "traced"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    "kind", [tfdist.AllReduceStrategy, tfdist.PeerToPeerStrategy]
)
def test_a_step_without_an_update_is_not_counted(kind, name, eagerly):
    strategy = kind()
    with strategy.scope():
        optimizer, variable = OPTIMIZERS[name](), keras.Variable([1.0])

    def step(gradient):
        strategy.run(optimizer.apply, ([gradient], [variable]))

    step = step if eagerly else tf.function(step)
    for number in (1.0, float("inf"), 1.0, 1.0):
        if number == 1.0 or name == "scales":
            step(tf.constant([number]))
    # Three steps are one update; of four, the loss scale skips one.
    updates = 1 if name == "accumulates" else 3
    assert int(optimizer.iterations) == updates
    assert strategy.updates_applied() == [updates]
