"""tfdist with servers that are killed and started again: what runs where."""

import threading
import time

from harness import own_batches


def serve(directory, every):
    """Runs a parameter server that keeps snapshots; does not return.

    Args:
        directory: for its snapshots.
        every: seconds between two.
    """
    import tfdist

    tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(
            snapshot_dir=directory, snapshot_every=every
        )
    )


def worker(variables, size):
    """Builds a worker that trains in `model.fit`, in a thread of its own.

    Args:
        variables: number of parameters.
        size: elements of each.

    Returns:
        A callable `(what)`: "steps", the times at which its steps ended
        (seconds since the epoch); "recoveries", of each its end, seconds, and
        whether this worker restored the server; "counts", what became of its
        gradients, after the end of the training, which it brings about.
    """
    import keras
    import tensorflow as tf

    import tfdist

    strategy = tfdist.AsyncStrategy()

    class Layer(keras.layers.Layer):
        def build(self, input_shape):
            self.parts = [
                self.add_weight(shape=(size,), initializer="zeros")
                for _ in range(variables)
            ]

        def call(self, inputs):
            return inputs * sum(keras.ops.mean(part) for part in self.parts)

    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), Layer()])
        model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
    ends, over = [], threading.Event()

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ends.append(time.time())
            self.model.stop_training = over.is_set()

    data = tf.data.Dataset.from_tensors((tf.ones([8, 1]), tf.ones([8, 1])))
    data = own_batches.whole(data.repeat())
    failures = []

    def train():
        try:
            model.fit(
                data, steps_per_epoch=10**9, verbose=0, callbacks=[Watch()]
            )
        except Exception as error:  # Shown to who asks.
            failures.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=train, daemon=True)
    thread.start()

    def answer(what):
        if failures:
            raise RuntimeError(failures[0])
        if what == "steps":
            return list(ends)
        if what == "recoveries":
            return [
                (e.time, e.seconds, bool(e.restored_by_this_worker))
                for e in strategy.recoveries
            ]
        over.set()
        thread.join()
        return strategy.push_counts()

    return answer
