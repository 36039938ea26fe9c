"""Workers of which one pushes updates that are not finite."""

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist

NAN, INF = float("nan"), float("inf")
# By worker and step, the gradients of the two weights, which lie on two
# servers: one of the two is enough to refuse both.
STEPS = {
    0: [(1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (NAN, 1.0), (1.0, 1.0)],
    1: [(4.0, 2.0), (4.0, NAN), (NAN, 2.0), (4.0, 2.0), (4.0, INF), (4.0, 2.0)],
}


class TwoSums(keras.layers.Layer):
    """The two inputs, each times the sum of a weight; see `tasks`."""

    def build(self, input_shape):
        """Makes the weights, and a count of the inputs."""
        del input_shape
        self.parts = [
            self.add_weight(shape=shape, initializer="zeros", name=f"part{i}")
            for i, shape in enumerate(((7,), (3, 5)))
        ]
        self.seen = self.add_weight(
            shape=(2,), initializer="zeros", trainable=False, name="seen"
        )

    def call(self, inputs, training=False):
        """Returns `(batch, 1)`; its gradients are the inputs' means."""
        if training:
            self.seen.assign_add(keras.ops.mean(inputs, axis=0))
        first, second = (keras.ops.sum(part) for part in self.parts)
        return inputs[:, :1] * first + inputs[:, 1:] * second


def train_on_servers():
    """Trains without waiting and in step; reports what came of each."""
    common = {"fault_tolerance": tasks.PATIENT}
    strategies = {
        "async": tfdist.AsyncStrategy(nonfinite="drop", **common),
        "sync": tfdist.BackupWorkersStrategy(
            0, on_drop="retry", nonfinite="drop", **common
        ),
        "fail": tfdist.BackupWorkersStrategy(0, nonfinite="fail", **common),
    }
    reports = {}
    for name, strategy in strategies.items():
        print(f"begins {name}", flush=True)
        steps = STEPS[strategy.cluster.worker_id]
        if name == "fail" and strategy.cluster.worker_id == 0:
            steps = [(1.0, 1.0)] * 4
        reports[name] = _fit(strategy, steps)
        if name == "async":
            reports["on one"] = _fit_on_one_server(strategy)
    handshake.report(**reports)


def train_in_a_ring():
    """Averages every second step, and what is left; reports what came."""
    strategy = tfdist.ParameterAveragingStrategy(
        2,
        communication="ring",
        fault_tolerance=tasks.PATIENT,
    )
    steps = STEPS[strategy.cluster.worker_id][:5]
    handshake.report(ring=_fit(strategy, steps))


def _fit_on_one_server(strategy):
    """What became of the gradients of a model of one weight, a dict."""
    before = strategy.push_counts()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input([1]), keras.layers.Dense(1, use_bias=False)]
        )
        model.compile(keras.optimizers.SGD(1.0), tasks.first_output)
    x = np.array([1.0, NAN, 1.0], "float32")[:, None, None]
    data = tf.data.Dataset.from_tensor_slices((x, x))
    model.fit(tasks.unshared(data), verbose=0)
    strategy.barrier()
    return {"before": before, "after": strategy.push_counts()}


def _fit(strategy, steps):
    with strategy.scope():
        model = keras.Sequential([keras.Input([2]), TwoSums()])
        model.compile(keras.optimizers.SGD(1.0), tasks.first_output)
    x = np.array(steps, "float32")[:, None]
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :, :1]))
    message = None
    try:
        model.fit(tasks.unshared(data), verbose=0)
    except tf.errors.InvalidArgumentError as error:
        message = str(error)
    strategy.barrier()
    layer = model.layers[-1]
    return {
        "parts": [np.unique(part.numpy()).tolist() for part in layer.parts],
        "seen": layer.seen.numpy().tolist(),
        "servers": sorted({part.value.shard for part in layer.parts}),
        "updates": strategy.updates_applied(),
        "iterations": int(model.optimizer.iterations.numpy()),
        "counts": {
            name: {k: n for k, n in counts.items() if k != "staleness"}
            for name, counts in strategy.gradient_counts().items()
        },
        "exchanges": [
            [e.accepted, e.nonfinite] for e in strategy.journal.read_new()
        ],
        "error": message,
    }
