"""Sandblaster with workers of different speeds: what runs where."""

import time


def serve():
    """Runs a parameter server; does not return."""
    import tfdist

    tfdist.SandblasterStrategy()


def worker(portions_per_worker, backup_after, batches, seconds, size):
    """Builds a worker whose batches sleep.

    Args:
        portions_per_worker: of the strategy.
        backup_after: the same.
        batches: number of batches of the data.
        seconds: that a batch takes, by number of the worker.
        size: number of parameters.

    Returns:
        A callable `(epochs)` that trains, and returns of each iteration its
        seconds and its evaluations, and what `portion_counts` returns.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist

    strategy = tfdist.SandblasterStrategy(
        portions_per_worker=portions_per_worker, backup_after=backup_after
    )
    pause = seconds[strategy.cluster.worker_id]

    class Sleeper(keras.Model):
        def train_step(self, data):
            # The processor is free for others, as if this were a device.
            tf.numpy_function(lambda: time.sleep(pause), [], [])
            return super().train_step(data)

    with strategy.scope():
        inputs = keras.Input((size,))
        model = Sleeper(inputs, keras.layers.Dense(1, use_bias=False)(inputs))
        model.compile(
            tfdist.sandblaster.LBFGS(
                gradient_tolerance=0.0, value_tolerance=0.0
            ),
            loss="mse",
        )
    random = np.random.default_rng(0)
    x = random.normal(size=(4 * batches, size)).astype("float32")
    y = np.sin(x.sum(1)).astype("float32")
    ends = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            ends.append(time.monotonic())

    def answer(epochs):
        model.fit(
            x,
            y,
            batch_size=4,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=[Watch()],
        )
        times = [*ends, time.monotonic()]
        took = [b - a for a, b in zip(times, times[1:], strict=False)]
        made = [one["evaluations"] for one in strategy.iterations]
        return (
            list(zip(took, made, strict=False)),
            strategy.portion_counts(),
        )

    return answer
