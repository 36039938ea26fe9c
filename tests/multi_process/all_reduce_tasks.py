"""Workers that average their gradients without servers."""

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import failure_tasks
from tests.multi_process import handshake
import tfdist

BATCH = 4
FEATURES = 3
RATE, MOMENTUM = 0.05, 0.9
STATISTICS_MOMENTUM = 0.8
# By worker: batches of each of two calls of `fit`.
BATCHES = (5, 3, 4)
# The worker, and the step of its first `fit`, whose gradients are not finite.
BAD = (1, 1)


def data_of(worker):
    """A worker's batches of each call of `fit`.

    Args:
        worker: its number.

    Returns:
        A list of lists of pairs (x, y), float32, `(BATCH, FEATURES)` and
        `(BATCH, 1)`.
    """
    random = np.random.default_rng(worker)
    calls = []
    for call in range(2):
        batches = []
        for step in range(BATCHES[worker]):
            x = random.normal(size=(BATCH, FEATURES)).astype("float32")
            y = x.sum(axis=1, keepdims=True) ** 2
            if (call, worker, step) == (0, *BAD):
                y[0] = np.nan
            batches.append((x, y))
        calls.append(batches)
    return calls


def _data(batches):
    x, y = (np.concatenate(part) for part in zip(*batches, strict=True))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    return data.with_options(options)


def regress(run_eagerly=False):
    """Fits a linear regression in two calls of `fit`.

    Args:
        run_eagerly: of `compile`.
    """
    strategy = tfdist.AllReduceStrategy(
        seed=1, fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0)
    )
    worker = strategy.cluster.worker_id
    with strategy.scope():
        inputs = keras.Input([FEATURES])
        layer = keras.layers.Dense(
            1,
            use_bias=False,
            # What only the chief's first values may decide.
            kernel_initializer=keras.initializers.Constant(worker),
        )
        model = keras.Model(inputs, layer(inputs))
        model.compile(
            keras.optimizers.SGD(RATE, momentum=MOMENTUM),
            "mse",
            run_eagerly=run_eagerly,
        )
    seen = []
    for batches in data_of(worker):
        model.fit(_data(batches), verbose=0)
        # Of all workers, whoever has ended first.
        seen.append(model.get_weights()[0].ravel().tolist())
    strategy.barrier()
    handshake.report(
        weights=seen,
        momentum=model.optimizer.variables[2].numpy().ravel().tolist(),
        iterations=int(model.optimizer.iterations.numpy()),
        updates=strategy.updates_applied(),
        counts=strategy.push_counts(),
        over=bool(strategy.training_is_over()),
    )


class Two(keras.Model):
    """Two models, each with an optimizer of its own, in one step."""

    def __init__(self):
        """Makes both."""
        super().__init__()
        self.parts = [keras.layers.Dense(1), keras.layers.Dense(1)]
        self.optimizers = [
            keras.optimizers.Adam(0.01),
            keras.optimizers.SGD(0.01, momentum=0.9),
        ]

    def build(self, input_shape):
        """Makes all variables."""
        for part, optimizer in zip(self.parts, self.optimizers, strict=True):
            part.build(input_shape)
            optimizer.build(part.trainable_variables)
        super().build(input_shape)

    def call(self, inputs):
        """Returns the sum."""
        return self.parts[0](inputs) + self.parts[1](inputs)

    def train_step(self, data):
        """Steps of one optimizer after the other."""
        x, y = data
        for part, optimizer in zip(self.parts, self.optimizers, strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            weights = part.trainable_variables
            gradients = tape.gradient(loss, weights)
            optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"loss": loss}


def _model(name):
    if name == "two":
        model = Two()
        model.build([None, FEATURES])
        model.compile(keras.optimizers.SGD(), "mse")
        return model
    layers = {
        "normalized": lambda: [
            keras.layers.BatchNormalization(momentum=STATISTICS_MOMENTUM),
            keras.layers.Dense(1),
        ],
        "accumulating": lambda: [keras.layers.Dense(1)],
        "table": lambda: [
            keras.layers.Embedding(7, 2),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ],
    }[name]()
    optimizer = keras.optimizers.Adam(
        0.01, gradient_accumulation_steps=2 if name == "accumulating" else None
    )
    if name == "table":
        # Adam squares each occurrence of an id, where it is told of them.
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    model = keras.Sequential([keras.Input([FEATURES]), *layers])
    model.compile(
        optimizer,
        "mse",
        steps_per_execution=3,
        jit_compile=name == "normalized",
    )
    return model


def numbers_of(worker):
    """A worker's whole numbers, float32 `(6 * BATCH, FEATURES)`."""
    random = np.random.default_rng(worker)
    return random.integers(7, size=(6 * BATCH, FEATURES)).astype("float32")


MODELS = ("normalized", "accumulating", "table", "two")


def train_models(strategy):
    """Trains models one after the other; reports what they have come to.

    Args:
        strategy: "all_reduce", or "sync" with servers.
    """
    make = {
        "all_reduce": tfdist.AllReduceStrategy,
        "sync": lambda **kwargs: tfdist.ParameterServerStrategy(
            synchronization=tfdist.synchronization.Sync(), **kwargs
        ),
    }[strategy]
    reports = {}
    for name in MODELS:
        made = make(
            seed=1, fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0)
        )
        with made.scope():
            model = _model(name)
        x = numbers_of(made.cluster.worker_id)
        y = x.sum(axis=1, keepdims=True)
        model.fit(_data([(x, y)]), verbose=0)
        made.barrier()
        reports[name] = {
            "weights": [
                w.numpy().ravel().tolist() for w in model.trainable_weights
            ],
            "state": [
                w.numpy().ravel().tolist() for w in model.non_trainable_weights
            ],
            "slots": [
                v.numpy().ravel().tolist()
                for optimizer in _optimizers(model)
                for v in optimizer.variables[2:]
            ],
            "iterations": [
                int(optimizer.iterations.numpy())
                for optimizer in _optimizers(model)
            ],
            "saved": _saved(model, name),
        }
    handshake.report(**reports)


def _optimizers(model):
    return getattr(model, "optimizers", [model.optimizer])


def _saved(model, name):
    """Whether the chief's file holds the weights shown; else None."""
    model.save_weights("model.weights.h5")
    if not tfdist.cluster.ClusterConfig.from_tf_config(
        needs_servers=False
    ).is_chief:
        return None
    other = _model(name)
    other.load_weights("model.weights.h5")
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return all(np.array_equal(*pair) for pair in pairs)


def train_for_ever():
    """Trains until an exchange fails; reports how."""
    strategy = tfdist.AllReduceStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0)
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    try:
        model.fit(
            _data([(np.ones([4, 4]), np.ones([4, 1]))]).repeat(),
            steps_per_epoch=10**9,
            verbose=0,
            callbacks=[failure_tasks.TellProgress("never")],
        )
    except tf.errors.UnavailableError as error:
        handshake.report(error=error.message)
        raise
