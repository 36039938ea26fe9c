"""A worker in the middle of local steps is known to be at work."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist

_FAR = 1000


@pytest.mark.nightly
def test_heartbeats_tell_of_local_steps():
    strategy = tfdist.ParameterAveragingStrategy(
        lambda step: tf.where(step == 1, 1, _FAR)
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    coordination = strategy._runtime.coordination

    def since():
        coordination.tick()
        (ledger,) = coordination.ledgers
        return int(ledger.tick().since[0])

    seen = []

    def after_step(batch, logs=None):
        del batch, logs
        if strategy.journal.count:
            # Once with news, and once without.
            seen.append((since(), since()))

    x = np.ones((6, 2), np.float32)
    model.fit(
        x,
        x[:, :1],
        batch_size=1,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(on_train_batch_end=after_step)
        ],
    )
    assert len(seen) == 6
    assert all(first == second for first, second in seen)
    times = [first for first, _ in seen]
    assert times == sorted(set(times))
