"""Workers that are killed, stopped, and started again."""

import time

import keras
import numpy as np
import tensorflow as tf

from tests.all_reduce import programs
from tests.multi_process import failure_tasks
from tests.multi_process import handshake
import tfdist

TIMEOUT = 4.0


def _strategy(nonfinite="drop", period=None, **settings):
    common = {
        "seed": 1,
        "nonfinite": nonfinite,
        "fault_tolerance": tfdist.FaultTolerance(
            start_timeout=60.0, worker_timeout=TIMEOUT, **settings
        ),
    }
    if period is None:
        return tfdist.AllReduceStrategy(**common)
    return tfdist.ParameterAveragingStrategy(
        period, communication="ring", **common
    )


def train_for_ever(period=None):
    """Trains until an exchange fails; reports how, and when.

    Args:
        period: of parameter averaging; all-reduce of gradients without.
    """
    strategy = _strategy(period=period)
    with strategy.scope():
        model = programs.linear()
    try:
        model.fit(
            programs.batches(np.ones(4)).repeat(),
            steps_per_epoch=10**9,
            verbose=0,
            callbacks=[failure_tasks.TellProgress("never")],
        )
    except tf.errors.UnavailableError as error:
        handshake.report(error=error.message, time=time.time())
        raise


def train_alone(period=None):
    """One worker makes a period more than the other is there for.

    Args:
        period: as of `train_for_ever`.
    """
    strategy = _strategy(period=period, stall_timeout=3.0)
    with strategy.scope():
        model = programs.linear()
    x = np.ones([1, 1], "float32")
    model.fit(programs.batches([1.0]), verbose=0)
    if strategy.cluster.worker_id == 1:
        handshake.wait_for("the other has failed")
        return
    try:
        for _ in range(period or 1):
            model.train_on_batch(x, x)
    except tf.errors.DeadlineExceededError as error:
        handshake.report(error=error.message)


def meet_nan():
    """One worker has a batch with NaN, which is to be an error."""
    strategy = _strategy(nonfinite="fail")
    worker = strategy.cluster.worker_id
    with strategy.scope():
        model = programs.linear()
    gradients = [[1.0, 2.0, 3.0], [1.0, np.nan, 3.0]][worker]
    try:
        model.fit(programs.batches(gradients), verbose=0)
    except tf.errors.OpError as error:
        weight = programs.weight_of(model)
        handshake.report(
            kind=type(error).__name__, error=error.message, weight=weight
        )
        raise


def train(directory, epochs):
    """Trains with a `ClusterCheckpoint`; reports all bits.

    Args:
        directory: of the checkpoints.
        epochs: of `fit`.
    """
    strategy = _strategy()
    worker = strategy.cluster.worker_id
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([1]),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(2),
            ]
        )
        model.compile(keras.optimizers.Adam(0.5), programs.Mean())
    checkpoint = tfdist.callbacks.ClusterCheckpoint(directory)
    model.fit(
        programs.batches(np.arange(1.0, 4.0 - worker)),
        epochs=epochs,
        verbose=0,
        callbacks=[checkpoint],
    )
    handshake.report(
        bits=programs.bits(model),
        resumed=checkpoint.resumed_epoch,
        updates=strategy.updates_applied(),
    )
