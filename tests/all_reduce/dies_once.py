"""A program whose worker 1 kills itself once; prints the updates made."""

import os
import signal
import sys

import keras
import numpy as np

import tfdist


def main(directory):
    """Trains four epochs of two steps.

    Args:
        directory: of checkpoints, and of a mark that it has died.
    """
    strategy = tfdist.AllReduceStrategy(
        fault_tolerance=tfdist.FaultTolerance(worker_timeout=4.0)
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    mark = os.path.join(directory, "died")

    def die(epoch, logs=None):
        if epoch < 2 or strategy.cluster.is_chief or os.path.exists(mark):
            return
        with open(mark, "w", encoding="utf-8"):
            os.kill(os.getpid(), signal.SIGKILL)

    x = np.ones([4, 1], "float32")
    model.fit(
        x,
        x,
        batch_size=1,
        epochs=4,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(on_epoch_begin=die),
            tfdist.callbacks.ClusterCheckpoint(os.path.join(directory, "of")),
        ],
    )
    print("updates:", *strategy.updates_applied(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
