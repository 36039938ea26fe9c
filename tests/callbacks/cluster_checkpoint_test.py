"""A training that is stopped and resumed is the one that never stopped."""

import os
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.parameter_server.twins import assert_same
from tests.parameter_server.twins import classification
from tests.parameter_server.twins import compiled
from tests.parameter_server.twins import perceptron
from tests.parameter_server.twins import traces
import tfdist
from tfdist import averaging
from tfdist import correction
from tfdist.callbacks import ClusterCheckpoint
from tfdist.callbacks import checkpoint_files
from tfdist.parameter_server.saved_state import SavedState
from tfdist.parameter_server.synchronize import ModelMismatchError

_BATCH = 6
# Eight steps of an epoch: no period of 5 and no accumulation of 3 ends with
# an epoch, so that a save comes in the midst of each.
X, Y = classification(8 * _BATCH)
_PARTS = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
_SGD = keras.optimizers.SGD
_ADAM = keras.optimizers.Adam


def _net():
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3),
        ]
    )


def _corrected(method, **kwargs):
    return lambda: tfdist.ParameterServerStrategy(correction=method, **kwargs)


_CASES = {
    "adam, schedule, accumulation": (
        tfdist.AsyncStrategy,
        lambda: _ADAM(
            keras.optimizers.schedules.CosineDecay(0.05, 12),
            gradient_accumulation_steps=3,
        ),
    ),
    "delay compensation": (
        _corrected(
            correction.DelayCompensation(variance_decay=0.9),
            variable_partitioner=_PARTS,
        ),
        lambda: _ADAM(0.02),
    ),
    "DANA zero": (
        _corrected(correction.DANA("zero"), variable_partitioner=_PARTS),
        lambda: _SGD(0.02),
    ),
    "DANA slim": (_corrected(correction.DANA("slim")), lambda: _SGD(0.02)),
    "FASGD": (
        _corrected(correction.FASGD(), variable_partitioner=_PARTS),
        lambda: _SGD(0.005),
    ),
    "DiLoCo": (lambda: tfdist.DiLoCoStrategy(5), lambda: _ADAM(0.02)),
    "BMUF": (
        lambda: tfdist.BMUFStrategy(5, block_momentum=0.5),
        lambda: _SGD(0.05, momentum=0.9),
    ),
    "elastic averaging": (
        lambda: tfdist.ElasticAveragingStrategy(5, alpha=0.3),
        lambda: _SGD(0.05, momentum=0.9),
    ),
    "Downpour": (
        lambda: tfdist.ParameterServerStrategy(
            local_steps=averaging.AccruedGradients(3, 5)
        ),
        lambda: _SGD(0.05),
    ),
}


def _start(make_strategy, make_optimizer, net=_net):
    keras.utils.set_random_seed(5)
    strategy = make_strategy()
    with strategy.scope():
        model = compiled(net(), make_optimizer())
    return strategy, model


def _fit(model, epochs, **kwargs):
    model.fit(
        X,
        Y,
        batch_size=_BATCH,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        **kwargs,
    )


class _StopAfter(keras.callbacks.Callback):
    """Ends `fit` as an exception does, at the end of an epoch."""

    def __init__(self, epochs):
        super().__init__()
        self._epochs = epochs

    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 == self._epochs:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", _CASES)
def test_resumed_training_is_the_one_that_never_stopped(tmp_path, name):
    strategy, model = _start(*_CASES[name])
    _fit(model, 3)
    strategy.settle()
    expected, updates = traces(model), strategy.updates_applied()

    _, model = _start(*_CASES[name])
    checkpoint = ClusterCheckpoint(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        _fit(model, 3, callbacks=[checkpoint, _StopAfter(2)])

    strategy, model = _start(*_CASES[name])
    resumed = ClusterCheckpoint(tmp_path)
    _fit(model, 3, callbacks=[resumed])
    strategy.settle()
    assert resumed.resumed_epoch == 2
    assert_same(traces(model), expected)
    assert strategy.updates_applied() == updates
