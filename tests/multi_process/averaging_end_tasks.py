"""Workers whose training ends in the middle of a period."""

import contextlib
import dataclasses
import threading

import keras
import numpy as np

from tests.multi_process import eager_calls
from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist


class _Fail(keras.callbacks.Callback):
    """Has a bug after some steps."""

    def __init__(self, steps):
        super().__init__()
        self._last = steps - 1

    def on_train_batch_end(self, batch, logs=None):
        del logs
        if batch == self._last:
            raise ArithmeticError("a bug of the user")


def train(steps, value, period):
    """Trains, twice, and does nothing else until the test says so.

    A third time, in which the first worker's `fit` fails in its last step, and
    its script goes on.

    Args:
        steps: of each `fit`, a list by worker.
        value: the gradient.
        period: local steps between two exchanges.
    """
    seen = eager_calls.watch()
    strategy = tfdist.ParameterAveragingStrategy(
        period,
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=60.0, worker_timeout=4.0
        ),
    )
    model = tasks.build_sum_of_weights(strategy, shapes=((7,), (3, 5)))
    worker = strategy.cluster.worker_id
    for number in range(3):
        fails = number == 2 and worker == 0
        with contextlib.suppress(ArithmeticError):
            model.fit(
                tasks.own_data(value),
                steps_per_epoch=steps[worker],
                verbose=0,
                callbacks=[_Fail(steps[worker])] if fails else [],
            )
        if number and not fails:
            model.predict(np.ones([1, 1]), verbose=0)
        print(f"trained {number}", flush=True)
        handshake.wait_for(f"go on {number}")
    # What the watchdog asks when there is no progress, in a thread as well.
    asking = threading.Thread(target=strategy._runtime.recovery._describe_wait)
    asking.start()
    asking.join()
    strategy.barrier()
    handshake.report(
        eager_calls=seen,
        threads=sorted(thread.name for thread in threading.enumerate()),
        exchanges=[dataclasses.asdict(e) for e in strategy.journal.read_new()],
        weights=[float(np.mean(w)) for w in model.trainable_weights],
        updates=strategy.updates_applied(),
        iterations=int(model.optimizer.iterations.numpy()),
    )
