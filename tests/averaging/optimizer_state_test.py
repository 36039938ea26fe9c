"""It matters what becomes of Adam's moments when parameters are averaged.

Real digits; one worker has the even ones, the other the odd ones. Moments that
each keeps for itself pull every worker back to its own digits; averaged ones
pull to where all of them go.
"""

import keras
import numpy as np
import pytest

from tests.averaging.virtual_workers import VirtualWorkers
import tfdist
from tfdist.averaging import ParameterAveraging
from tfdist.synchronization import Sync

WORKERS, PERIOD, ROUNDS, BATCH = 2, 5, 20, 16


def build():
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(10, kernel_initializer="zeros"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.03),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def trained(x, y, average_optimizer_state):
    """Loss and accuracy on all digits after a hundred steps of each."""
    method = ParameterAveraging(
        PERIOD, average_optimizer_state=average_optimizer_state
    )
    run = VirtualWorkers(WORKERS, method, Sync(), build)
    random = np.random.default_rng(0)
    shares = [np.flatnonzero(y % WORKERS == k) for k in range(WORKERS)]
    for _ in range(ROUNDS):
        chosen = [
            [random.choice(share, BATCH) for _ in range(PERIOD)]
            for share in shares
        ]
        run.round([[(x[rows], y[rows]) for rows in mine] for mine in chosen])
    plain = build()
    plain.set_weights(run.models[0].get_weights())
    return plain.evaluate(x, y, verbose=0)


@pytest.mark.nightly
def test_averaged_moments_are_worth_it():
    """Seen: a loss of 0.29 against 0.53, 94 % against 91 % right."""
    x, y = tfdist.datasets.load(
        "digits", split="train", as_supervised=True, batch_size=-1
    )
    x = np.reshape(x, (len(x), 64)).astype("float32") / 16.0
    y = np.asarray(y)
    loss, accuracy = trained(x, y, average_optimizer_state=False)
    averaged_loss, averaged_accuracy = trained(
        x, y, average_optimizer_state=True
    )
    assert averaged_loss < 0.7 * loss
    assert averaged_accuracy > accuracy + 0.015
