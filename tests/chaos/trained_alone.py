"""A worker of a cluster without servers, to which a schedule happens.

    python tests/chaos/trained_alone.py METHOD DIRECTORY EVENTS

The chief prints the bits of the weights at the end, and the updates. EVENTS is
JSON: a list of epoch, batch, worker, and what happens then: "kill" (SIGKILL),
or for how many seconds the worker is stopped.
"""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import keras
import numpy as np

import tfdist

EPOCHS = 6
BATCHES = 4
WORKER_TIMEOUT = 4.0


def strategy_of(method):
    """The strategy of a method, without servers."""
    tolerance = tfdist.FaultTolerance(worker_timeout=WORKER_TIMEOUT)
    if method == "all_reduce":
        return tfdist.AllReduceStrategy(seed=0, fault_tolerance=tolerance)
    kind = {
        "averaging": tfdist.ParameterAveragingStrategy,
        "bmuf": tfdist.BMUFStrategy,
        "diloco": tfdist.DiLoCoStrategy,
    }[method]
    return kind(2, communication="ring", seed=0, fault_tolerance=tolerance)


def suffer(what):
    """Has something happen to this process."""
    me = os.getpid()
    if what == "kill":
        os.kill(me, signal.SIGKILL)
    subprocess.Popen(
        ["sh", "-c", f"sleep {what}; kill -CONT {me}"], start_new_session=True
    )
    os.kill(me, signal.SIGSTOP)


class Schedule(keras.callbacks.Callback):
    """What happens to this worker, each event once.

    Args:
        events: as in the module's docstring.
        worker: number of this worker.
        marks: `pathlib.Path` of a directory; has a file for each past event.
    """

    def __init__(self, events, worker, marks):
        super().__init__()
        self._events = events
        self._worker = worker
        self._marks = marks
        self._epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        here = [self._epoch, batch, self._worker]
        for number, (*where, what) in enumerate(self._events):
            mark = self._marks / f"event-{number}"
            if where == here and not mark.exists():
                mark.touch()
                print(f"event: {number} {where} {what}", flush=True)
                suffer(what)


def main(method, directory, events):
    """Trains; see the module's docstring."""
    directory = pathlib.Path(directory)
    strategy = strategy_of(method)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([3]),
                keras.layers.Dense(4, activation="tanh"),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.random.default_rng(0).normal(size=[2 * 2 * BATCHES, 3])
    x = x.astype("float32")
    schedule = Schedule(
        json.loads(events), strategy.cluster.worker_id, directory
    )
    model.fit(
        x,
        x.sum(-1, keepdims=True),
        batch_size=2,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[
            schedule,
            tfdist.callbacks.ClusterCheckpoint(str(directory / "of")),
        ],
    )
    bits = b"".join(weight.tobytes() for weight in model.get_weights())
    if strategy.cluster.is_chief:
        print("result:", hashlib.sha256(bits).hexdigest(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
