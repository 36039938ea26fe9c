"""Workers that take local steps between exchanges."""

import time

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import failure_tasks
from tests.multi_process import handshake
from tests.multi_process import synchronization_tasks
from tests.multi_process import tasks
import tfdist
from tfdist import synchronization

_SECONDS = 120.0


def wait_for_push(strategy, worker, number):
    """Waits until the ledger has got so many pushes of a worker."""
    end = time.monotonic() + _SECONDS
    name = f"/job:worker/task:{worker}"
    while strategy.gradient_counts()[name]["pushed"] < number:
        if time.monotonic() > end:
            raise TimeoutError(f"no push {number} of {name}")
        time.sleep(0.02)


def train(
    method,
    arguments,
    period,
    until,
    batch_size=1,
    pace=0.0,
    hold=None,
    await_push=None,
    worker_timeout=60.0,
    end="barrier",
):
    """Pushes ones, averaged; reports what it sees in the end.

    Args:
        method: name of a `Synchronization`.
        arguments: of it.
        period: local steps between two averagings.
        until: what the test tells, or a number of steps.
        batch_size: examples in each of its batches.
        pace: seconds to pause after each step.
        hold: after this number of steps wait until told to go on.
        await_push: by number of steps, [worker, pushes] to wait for after it.
        worker_timeout: of the strategy.
        end: "barrier" within `fit`, or "exit", nothing but the process's end.
    """
    strategy = tfdist.ParameterAveragingStrategy(
        period,
        synchronization=getattr(synchronization, method)(**arguments),
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=60.0, worker_timeout=worker_timeout
        ),
        decisions=failure_tasks.decisions_of(until),
    )
    model = tasks.build_sum_of_weights(
        strategy, shapes=synchronization_tasks.SHAPES
    )
    losses = []

    def after_step(logs):
        losses.append(logs["loss"])
        time.sleep(pace)
        step = len(losses)
        if step == hold:
            print("holding", flush=True)
            handshake.wait_for("go on")
        if str(step) in (await_push or {}):
            wait_for_push(strategy, *await_push[str(step)])

    barrier = keras.callbacks.LambdaCallback(
        on_train_end=lambda logs: strategy.barrier()
    )
    model.fit(
        tasks.own_data(1.0, batch_size),
        steps_per_epoch=1000000,
        verbose=0,
        callbacks=[
            failure_tasks.TellProgress(until, after_step),
            *([barrier] if end == "barrier" else []),
        ],
    )
    print("trained", flush=True)
    if end != "exit":
        exchanges = strategy.journal.read_new()
        handshake.report(
            updates=strategy.updates_applied(),
            iterations=int(model.optimizer.iterations.numpy()),
            weights=[
                w.numpy().ravel().tolist() for w in model.trainable_weights
            ],
            counts=strategy.gradient_counts(),
            losses=losses,
            local_steps=[e.local_steps for e in exchanges],
            accepted=[bool(e.accepted) for e in exchanges],
        )


def regress(name, arguments, optimizer, batch_sizes, steps, paces=(0, 0, 0)):
    """Fits its own share of a linear regression; reports all its exchanges.

    Args:
        name: of a strategy of tfdist with local steps.
        arguments: of it.
        optimizer: config of a Keras optimizer.
        batch_sizes: by worker.
        steps: number of batches.
        paces: by worker, seconds to pause after each step.
    """
    strategy = getattr(tfdist, name)(
        fault_tolerance=tasks.PATIENT,
        **arguments,
    )
    worker = strategy.cluster.worker_id
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(1, kernel_initializer="ones"),
            ]
        )
        model.compile(keras.optimizers.deserialize(optimizer), "mse")
    x, y = synchronization_tasks.regression(worker, steps, batch_sizes[worker])
    data = tasks.unshared(tf.data.Dataset.from_tensor_slices((x, y)))
    shown = [_weights(model)]

    def after_step(batch, logs):
        del batch, logs
        shown.append(_weights(model))
        time.sleep(paces[worker])

    note = keras.callbacks.LambdaCallback(on_train_batch_end=after_step)
    model.fit(data, verbose=0, callbacks=[note])
    strategy.flush()
    shown.append(_weights(model))
    exchanges = strategy.journal.read_new()
    runtime = strategy._runtime
    last = [
        int(runtime.store.pulled_version(k))
        for k in range(runtime.store.num_shards)
    ]
    strategy.barrier()
    layer = model.layers[-1]
    local = runtime.local
    own = [
        local._own_values.shadow(v.value).numpy()
        for v in (layer.kernel, layer.bias)
    ]
    handshake.report(
        updates=strategy.updates_applied(),
        iterations=int(model.optimizer.iterations.numpy()),
        counts=strategy.gradient_counts(),
        placement=[v.value.shard for v in (layer.kernel, layer.bias)],
        shown=shown,
        weights=_weights(model),
        own=[*own[0][:, 0].tolist(), float(own[1][0])],
        local_steps=[e.local_steps for e in exchanges],
        accepted=[bool(e.accepted) for e in exchanges],
        # After each exchange, the updates of each server.
        versions=[
            *[list(e.pulled_by_server) for e in exchanges[1:]],
            last,
        ],
    )


def _weights(model):
    kernel, bias = model.layers[-1].get_weights()
    return [*np.ravel(kernel).tolist(), float(bias[0])]
