"""A script for the launcher: trains at a rate of zero, with a ClusterMonitor.

So the model stays what it is, and what the metrics over all data must be is
known without knowing in which order the workers' steps come.
"""

import json
import pathlib
import sys

import keras
import numpy as np

import tfdist

BATCH_SIZE, EPOCHS = 4, 2


def examples(number):
    """The data: inputs of three numbers, and their sum with an error."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=[number, 3]).astype("float32")
    return x, x.sum(axis=1, keepdims=True) + rng.normal(size=[number, 1])


def main(directory, number):
    """Trains, and leaves the logs of this worker's last epoch."""
    strategy = tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0)
    )
    x, y = examples(number)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input([3]), keras.layers.Dense(1, kernel_initializer="ones")]
        )
        model.compile(
            keras.optimizers.SGD(0.0),
            "mse",
            metrics=["mae", keras.metrics.RootMeanSquaredError(name="rmse")],
        )
    monitor = tfdist.callbacks.ClusterMonitor(
        log_dir=directory, every_batches=2
    )
    history = model.fit(
        x,
        y,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        # Not the training data, or else nobody could tell them apart.
        validation_data=(x + 1, y),
        callbacks=[monitor],
        verbose=0,
    )
    index = strategy.cluster.task_index
    (directory / f"worker-{index}.json").write_text(
        json.dumps(
            {
                "logs": {k: v[-1] for k, v in history.history.items()},
                "summary": monitor.summary,
                "jsonl_path": str(monitor.jsonl_path),
            }
        )
    )


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
