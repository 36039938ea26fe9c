"""Which strategies give out portions, and what others answer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist import synchronization
from tfdist.runtime.exchange import portion_progress


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"work": "some"}, "one of shares, queue. Received: work='some'"),
        ({"portions_per_worker": 0}, "of at least 1. Received: portions_per"),
        ({"local_steps": 2}, "with local_steps=ParameterAveraging"),
        ({"decisions": "each"}, "with decisions='each'"),
        (
            {"synchronization": synchronization.Sync()},
            "where workers wait for each other",
        ),
        (
            {"synchronization": synchronization.BoundedStaleness(2)},
            "where workers wait for each other",
        ),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        tfdist.ParameterServerStrategy(**{"work": "queue", **arguments})


@pytest.mark.nightly
@pytest.mark.parametrize(
    "make",
    [
        tfdist.SoftSyncStrategy,
        tfdist.AsyncStrategy,
        tfdist.DCASGDStrategy,
        tfdist.DANAStrategy,
    ],
)
def test_one_process_has_all_portions(make):
    strategy = make(work="queue", portions_per_worker=4)
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(np.ones([6, 1]), np.ones([6, 1]), batch_size=2, verbose=0)
    assert strategy.updates_applied() == [3]
    assert strategy.portion_counts() == {}


class CountedProgress(portion_progress.NoProgress):
    """Counts the batches of which it is told."""

    def __init__(self):
        self.batches = tf.Variable(0)

    def build_advance(self):
        """Counts one."""
        self.batches.assign_add(1, read_value=False)


@pytest.mark.nightly
def test_a_batch_that_a_loss_scale_leaves_out_counts_as_one():
    """Else the next push of the same call would be taken for its push."""
    strategy = tfdist.AsyncStrategy()
    strategy._runtime.batch_progress = progress = CountedProgress()
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model.compile(optimizer, "mse", steps_per_execution=2)
    x = np.array([[1.0], [np.inf], [1.0], [1.0]])
    model.fit(x, np.ones([4, 1]), batch_size=1, shuffle=False, verbose=0)
    assert strategy.updates_applied() == [3]
    assert progress.batches.numpy() == 4


@pytest.mark.parametrize(
    "make", [tfdist.BackupWorkersStrategy, tfdist.DownpourStrategy]
)
def test_presets_that_have_no_portions(make):
    with pytest.raises(ValueError, match="Argument `work` must be"):
        make(work="queue")
