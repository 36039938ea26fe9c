"""Workers that are told to leave while they train."""

import time

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import failure_tasks
from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist
from tfdist import averaging
from tfdist import synchronization

SHAPES = ((7,), (3, 5))
_METHODS = {
    "async": synchronization.Async(),
    "bounded": synchronization.BoundedStaleness(0),
    "sync": synchronization.Sync(),
}
_BATCH_SIZE = 2
# Seconds after each step: tests wait for some steps, and none take all time.
_PACE = 0.02


class _NoteEnd(keras.callbacks.Callback):
    """Notes whether Keras takes training for ended."""

    ended = False

    def on_train_end(self, logs=None):
        del logs
        self.ended = True


def train(
    value, until, method="async", local_steps=None, hold=None, release=None
):
    """Pushes `value` until told to stop; reports in the end, however it comes.

    Args:
        value: the gradient.
        until: what the test tells, or a number of steps.
        method: a key of `_METHODS`.
        local_steps: steps between exchanges; `None` for one.
        hold: in the middle of the step after so many, wait.
        release: what to wait for then.
    """
    strategy = tfdist.ParameterServerStrategy(
        synchronization=_METHODS[method],
        local_steps=local_steps and averaging.ParameterAveraging(local_steps),
        fault_tolerance=tfdist.FaultTolerance(start_timeout=120.0),
        decisions=failure_tasks.decisions_of(until),
    )
    model = tasks.build_sum_of_weights(strategy, shapes=SHAPES)
    note = _NoteEnd()

    def pause(logs):
        del logs
        time.sleep(_PACE)

    try:
        model.fit(
            _data(value, hold, release),
            steps_per_epoch=1000000,
            verbose=0,
            callbacks=[failure_tasks.TellProgress(until, pause), note],
        )
        strategy.barrier()
    finally:
        weights = model.trainable_weights
        handshake.report(
            ended=note.ended,
            preempted=strategy.preempted,
            updates=strategy.updates_applied(),
            states=failure_tasks.states(strategy),
            counts=strategy.gradient_counts(),
            weights=sorted({float(w) for v in weights for w in v.numpy().flat}),
        )


def _data(value, hold, release):
    """Batches whose gradient is `value`; one of them comes when told."""

    def batch(number):
        if number == hold:
            print("holding", flush=True)
            handshake.wait_for(release)
        return np.full([_BATCH_SIZE, 1], value, np.float32)

    def pair(number):
        x = tf.numpy_function(batch, [number], tf.float32)
        x = tf.ensure_shape(x, [_BATCH_SIZE, 1])
        return x, x

    data = tasks.unshared(tf.data.Dataset.range(10**9).map(pair))
    # So that a batch is made in the middle of the step that takes it.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return data.with_options(options)
