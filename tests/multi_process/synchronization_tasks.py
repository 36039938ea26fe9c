"""Workers whose gradients are decided over before they count."""

import time

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import failure_tasks
from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist
from tfdist import correction
from tfdist import synchronization

SHAPES = ((7,), (3, 5))  # One on each of two servers.


def strategy_of(method, arguments, late=False, decisions="chief", **tolerance):
    """A strategy with the method of that name."""
    return tfdist.ParameterServerStrategy(
        synchronization=getattr(synchronization, method)(**arguments),
        correction=correction.InverseStaleness() if late else None,
        decisions=decisions,
        fault_tolerance=tfdist.FaultTolerance(
            **{"start_timeout": 60.0, **tolerance}
        ),
    )


def train(
    method,
    arguments,
    value,
    until,
    pace=0.0,
    before=None,
    after=None,
    hold=0,
    **tolerance,
):
    """Pushes `value` until told to stop; reports what it sees in the end.

    Args:
        method: name of a `Synchronization`.
        arguments: of it.
        value: the gradient.
        until: what the test tells, or a number of steps.
        pace: seconds to pause after each step.
        before: what to wait for, connected, before `fit`.
        after: what to wait for when `fit` has ended.
        hold: after this number of steps wait until told to go on.
        **tolerance: of `tfdist.FaultTolerance`. By default `start_timeout` and
            `worker_timeout` are 60 seconds.
    """
    strategy = strategy_of(
        method,
        arguments,
        decisions=failure_tasks.decisions_of(until),
        **{"worker_timeout": 60.0, **tolerance},
    )
    model = tasks.build_sum_of_weights(strategy, shapes=SHAPES)
    if before is not None:
        print("waiting", flush=True)
        handshake.wait_for(before)

    steps = 0

    def after_step(logs):
        nonlocal steps
        del logs
        time.sleep(pace)
        steps += 1
        if steps == hold:
            handshake.wait_for("go on")

    model.fit(
        tasks.own_data(value),
        steps_per_epoch=1000000,
        verbose=0,
        callbacks=[failure_tasks.TellProgress(until, after_step)],
    )
    print("trained", flush=True)
    if after is not None:
        handshake.wait_for(after)
    strategy.barrier()
    report(strategy, model)


def report(strategy, model, **more):
    """Reports what a worker sees when it has trained."""
    exchanges = strategy.journal.read_new()
    handshake.report(
        updates=strategy.updates_applied(),
        iterations=int(model.optimizer.iterations.numpy()),
        weights=[w.numpy().ravel().tolist() for w in model.trainable_weights],
        counts=strategy.gradient_counts(),
        exchanges=[
            [e.version, e.staleness, bool(e.accepted), e.wait_seconds]
            for e in exchanges
        ],
        **more,
    )


def regression(seed, steps, batch_size, features=3):
    """Batches of a linear regression: two arrays (steps, batch, ...)."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(steps, batch_size, features)).astype("float32")
    y = random.normal(size=(steps, batch_size, 1)).astype("float32")
    return x, y


def regress(
    method,
    arguments,
    steps,
    batch_size,
    optimizer,
    rate,
    late=False,
    paces=(0.0, 0.0, 0.0),
    fits=1,
    wait=False,
):
    """Fits its own share of a linear regression; reports the weights.

    Args:
        method: name of a `Synchronization`.
        arguments: of it.
        steps: number of batches.
        batch_size: examples in each.
        optimizer: name of a Keras optimizer.
        rate: its learning rate.
        late: whether to correct late gradients.
        paces: by worker, seconds to pause after each step.
        fits: how often to train on it.
        wait: whether to wait for the test after the first step.
    """
    strategy = strategy_of(method, arguments, late)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(1, kernel_initializer="ones"),
            ]
        )
        model.compile(
            keras.optimizers.get(
                {"class_name": optimizer, "config": {"learning_rate": rate}}
            ),
            "mse",
        )
    x, y = regression(strategy.cluster.worker_id, steps, batch_size)
    data = tasks.unshared(tf.data.Dataset.from_tensor_slices((x, y)))
    seen = [_weights(model)]

    def after_step(batch, logs):
        del batch, logs
        seen.append(_weights(model))
        time.sleep(paces[strategy.cluster.worker_id])

    note = keras.callbacks.LambdaCallback(on_train_batch_end=after_step)
    gate = [failure_tasks.TellProgress("stop"), tasks.WaitAfterFirstStep()]
    for _ in range(fits):
        model.fit(data, verbose=0, callbacks=[note, *(gate if wait else [])])
        strategy.barrier()
    report(strategy, model, seen=seen)


def _weights(model):
    kernel, bias = model.layers[-1].get_weights()
    return [*kernel[:, 0].tolist(), float(bias[0])]
