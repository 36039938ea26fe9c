"""Workers of different speeds with shares or portions: what runs where."""

import time


def serve():
    """Runs a parameter server; does not return."""
    import tfdist

    tfdist.AsyncStrategy()


def worker(work, batches, seconds):
    """Builds a worker whose batches sleep.

    Args:
        work: of the strategy, "shares" or "queue".
        batches: number of batches of the data.
        seconds: that a batch takes, by number of the worker.

    Returns:
        A callable `(fits)` that trains for one epoch in each of so many calls
        of `fit`; it returns when each began and ended, in seconds, and the
        number of batches that this worker has trained on.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist

    strategy = tfdist.AsyncStrategy(work=work)
    pause = seconds[strategy.cluster.worker_id]

    class Sleeper(keras.Model):
        def train_step(self, data):
            # The processor is free for others, as if this were a device.
            tf.numpy_function(lambda: time.sleep(pause), [], [])
            return super().train_step(data)

    with strategy.scope():
        inputs = keras.Input((10,))
        model = Sleeper(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(batches, 10))
    y = x.sum(1)

    def answer(fits):
        times = []
        for _ in range(fits):
            began = time.time()
            model.fit(x, y, batch_size=1, verbose=0)
            times.append((began, time.time()))
            strategy.barrier()
        return times, strategy.push_counts()["pushed"]

    return answer
