"""A script for the launcher: two of three workers leave before the end.

The third worker is told to (SIGTERM), the second one's process ends by itself;
each after two steps. The chief makes all of its own, three of them between the
second worker's last pull and its last push.
"""

import json
import os
import pathlib
import signal
import sys
import time

import keras
import tensorflow as tf

import tfdist

BATCHES, LATE_BY = 6, 3
SECONDS = 60.0


class Script(keras.callbacks.Callback):
    """What each worker waits for, and when it goes; by files."""

    def __init__(self, directory, worker):
        super().__init__()
        self._directory = directory
        self._worker = worker

    def on_train_batch_begin(self, batch, logs=None):
        del logs
        if (self._worker, batch) == (0, 1):
            self._tell("first-has-begun")
            self._wait_for("second-has-pulled")
        elif (self._worker, batch) == (0, 1 + LATE_BY):
            self._tell("second-is-late")
            self._wait_for("second-leaves")
        elif (self._worker, batch) == (1, 0):
            self._wait_for("first-has-begun")
            self._wait_for("third-leaves")
        elif (self._worker, batch) == (1, 1):
            self._tell("second-has-pulled")
            self._wait_for("second-is-late")
        elif (self._worker, batch) == (1, 2):
            self._tell("second-leaves")
            raise SystemExit(0)

    def on_train_batch_end(self, batch, logs=None):
        del logs
        if (self._worker, batch) == (2, 1):
            self._tell("third-leaves")
            os.kill(os.getpid(), signal.SIGTERM)

    def _tell(self, name):
        (self._directory / name).touch()

    def _wait_for(self, name):
        end = time.monotonic() + SECONDS
        while not (self._directory / name).exists():
            assert time.monotonic() < end, f"nobody has said {name}"
            time.sleep(0.01)


def main(directory, method):
    """Trains, and leaves the chief's summary."""
    synchronization, sharding = {
        "async": (
            tfdist.synchronization.Async(),
            tf.data.experimental.AutoShardPolicy.DATA,
        ),
        "bounded": (
            tfdist.synchronization.BoundedStaleness(2 * BATCHES),
            tf.data.experimental.AutoShardPolicy.OFF,
        ),
    }[method]
    strategy = tfdist.ParameterServerStrategy(
        synchronization=synchronization,
        # The second worker waits before its first step, for files.
        worker_start="independent",
        fault_tolerance=tfdist.FaultTolerance(start_timeout=SECONDS),
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = sharding
    shares = 2 if sharding is tf.data.experimental.AutoShardPolicy.DATA else 1
    batch = tf.ones([4, 2]), tf.ones([4, 1])
    data = tf.data.Dataset.from_tensors(batch).repeat(BATCHES * shares)
    monitor = tfdist.callbacks.ClusterMonitor(directory, every_batches=1)
    worker = strategy.cluster.worker_id
    model.fit(
        data.with_options(options),
        callbacks=[Script(directory, worker), monitor],
        verbose=0,
    )
    (directory / "summary.json").write_text(json.dumps(monitor.summary))


if __name__ == "__main__":
    try:
        main(pathlib.Path(sys.argv[1]), sys.argv[2])
    except SystemExit as left:
        if left.code != 128 + signal.SIGTERM:
            raise
        # To the test all tasks end with 0.
