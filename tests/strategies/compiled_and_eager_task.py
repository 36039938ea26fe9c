"""A worker or server of a cluster that trains compiled, then eagerly.

The two predictions are the input times a weight, plus a bias; the loss is their
mean. With SGD and a rate of one each weight is minus half the sum of the means
of all batches, and each bias minus half their number.
"""

import keras
import numpy as np

import tfdist


class Weight(keras.Model):
    """Two weights, and a count of examples that all workers add to."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2, kernel_initializer="zeros")
        self.seen = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="seen"
        )

    def call(self, x, training=False):
        if training:
            count = keras.ops.cast(keras.ops.shape(x)[0], "float32")
            self.seen.assign(self.seen + count)
        return self.dense(x)


def main():
    """Trains a model of its own in each mode; prints what came of it."""
    strategy = tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0)
    )
    x = np.repeat(np.arange(16.0, dtype="float32"), 2)[:, None]
    applied = [0, 0]
    for mode in ("jit", "eager"):
        with strategy.scope():
            model = Weight()
            model.compile(
                keras.optimizers.SGD(1.0),
                lambda y, prediction: keras.ops.mean(prediction),
                jit_compile=mode == "jit",
                run_eagerly=mode == "eager",
            )
        model.fit(x, x, batch_size=2, shuffle=False, verbose=0)
        strategy.barrier()
        before, applied = applied, strategy.updates_applied()
        print(
            f"{mode}: weights {model.dense.kernel.numpy().tolist()}",
            f"biases {model.dense.bias.numpy().tolist()}",
            f"applied {[a - b for a, b in zip(applied, before, strict=True)]}",
            f"iterations {int(model.optimizer.iterations)}",
            f"seen {float(model.seen)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
