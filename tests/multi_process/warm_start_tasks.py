"""Workers of which the first trains alone for a while."""

import dataclasses

import keras

from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist


def train(preset, arguments, warmup_worker_steps, worker_start, value):
    """Pushes `value` in ten steps more than the warm-up takes.

    Args:
        preset: name of a strategy.
        arguments: of it.
        warmup_worker_steps: of the strategy.
        worker_start: of the strategy.
        value: the gradient.
    """
    strategy = getattr(tfdist, preset)(
        **arguments,
        warmup_worker_steps=warmup_worker_steps,
        worker_start=worker_start,
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0),
    )
    model = tasks.build_sum_of_weights(strategy, shapes=((7,), (3, 5)))
    begun = []

    def begin(batch, logs=None):
        del logs
        if not batch:
            begun.append(strategy.updates_applied()[0])

    model.fit(
        tasks.own_data(value),
        steps_per_epoch=3 * warmup_worker_steps,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_begin=begin)],
    )
    strategy.barrier()
    handshake.report(
        begun=begun[0],
        exchanges=[dataclasses.asdict(e) for e in strategy.journal.read_new()],
        weights=[float(w.sum()) for w in model.get_weights()],
        updates=strategy.updates_applied(),
    )
