"""Training with constant gradients that are exact in float32.

Sums of them are exact in any order, so that replicas are equal, bit for bit,
and what each of them holds says which updates it has.
"""

import contextlib
import json
import logging
import pathlib

import keras
import numpy as np
import tensorflow as tf

from tests.all_reduce import programs
from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist
from tfdist.peers import account

ROWS, COLUMNS = 64, 32
RATE = 2.0**-3


def gradient(worker):
    """The gradient of each of a worker's steps, `(64, 32)` float64."""
    x, y = _factors(worker)
    return np.outer(x, y)


def _factors(worker):
    x = (np.arange(ROWS) % 5 - 2) * 2.0**-4
    y = (np.arange(COLUMNS) % 7 - 3) * 2.0**-3 * (worker + 1)
    return x, y


class Product(keras.losses.Loss):
    """The sum of outputs times targets: its gradient is the targets."""

    def call(self, y_true, y_pred):
        """Returns it, for each example."""
        return keras.ops.sum(y_true * y_pred, -1)


def data(worker, steps):
    """Batches of one example each."""
    x, y = (np.float32(factor)[None] for factor in _factors(worker))
    return tasks.unshared(tf.data.Dataset.from_tensors((x, y)).repeat(steps))


def model_of(strategy, make=None, **settings):
    """A model of 2,048 weights, which begin with zeros.

    Args:
        strategy: in whose scope it is made.
        make: callable that makes the optimizer.
        **settings: of `compile`.
    """
    with strategy.scope():
        layer = keras.layers.Dense(
            COLUMNS, use_bias=False, kernel_initializer="zeros"
        )
        model = keras.Sequential([keras.Input([ROWS]), layer])
        optimizer = keras.optimizers.SGD(RATE) if make is None else make()
        model.compile(optimizer, Product(), **settings)
    return model


class Replica(keras.callbacks.Callback):
    """Keeps the weights at the end of `fit`, of this replica alone."""

    def on_train_end(self, logs=None):
        """All updates are here, and the chief's values not yet."""
        self.weights = self.model.get_weights()[0]


def residual(strategy):
    """The residual of the newest model's codec, a list; zeros without one."""
    for variable in reversed([*strategy._engine.named.values()]):
        if "residual" in variable.name:
            return variable.numpy().tolist()
    return [0.0] * (ROWS * COLUMNS)


def constant_gradients(strategy, worker, steps=40, callbacks=()):
    """Reports the replica's weights, the residual, and all counts."""
    model = model_of(strategy)
    replica = Replica()
    model.fit(data(worker, steps), verbose=0, callbacks=[*callbacks, replica])
    return {
        "replica": replica.weights.ravel().tolist(),
        "after": model.get_weights()[0].ravel().tolist(),
        "residual": residual(strategy),
        "counts": strategy.update_counts(),
    }


def replica_after(strategy, model, batches):
    """What a replica holds at the end of `fit`, and its number of updates."""
    replica = Replica()
    model.fit(batches, verbose=0, callbacks=[replica])
    (only,) = strategy._engine.lanes[-1].channels
    return {"replica": replica.weights.ravel().tolist(), "sent": only.sent}


def repaired(strategy, worker):
    """Weights of worker 1 change by themselves; all logs of its checks."""
    model = model_of(strategy)
    replica, steps = Replica(), []

    def spoil(batch, logs):
        steps.append(batch)
        if worker == 1 and len(steps) == 2:
            with strategy._engine.applying():
                (weights,) = model.trainable_variables
                weights.assign(weights + 0.5)

    with recorded_logs() as logs:
        model.fit(
            data(worker, 4),
            epochs=3,
            verbose=0,
            callbacks=[programs.on(on_train_batch_end=spoil), replica],
        )
    return {
        "replica": replica.weights.ravel().tolist(),
        "residual": residual(strategy),
        "logs": [line for line in logs if "replica" in line],
        "counts": strategy.update_counts(),
    }


@contextlib.contextmanager
def recorded_logs():
    """Yields a list of the warnings that are logged meanwhile."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("absl")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def accumulated_gradients(strategy, worker):
    """Six steps with one update each two: of the mean."""
    model = model_of(
        strategy,
        lambda: keras.optimizers.SGD(RATE, gradient_accumulation_steps=2),
    )
    return replica_after(strategy, model, data(worker, 6))


def accumulated_over_fits(strategy, worker):
    """Two calls of `fit` of three steps, or of two; an update each two."""
    model = model_of(
        strategy,
        lambda: keras.optimizers.SGD(RATE, gradient_accumulation_steps=2),
    )
    for _ in range(2):
        found = replica_after(strategy, model, data(worker, 3 - worker))
    return found


def loop_before_fit(strategy, worker):
    """Steps of a loop, more on the chief; then two of `fit`."""
    model = model_of(strategy)
    for batch in data(worker, 30 if worker == 0 else 1):
        model.train_on_batch(*batch)
    return replica_after(strategy, model, data(worker, 2))


def set_after_an_exception(strategy, worker):
    """Rolls back what `fit` has made before it failed; then two steps."""
    model = model_of(strategy)
    weights = model.get_weights()

    def fail(epoch, logs=None):
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        model.fit(
            data(worker, 1 if worker == 0 else 30),
            verbose=0,
            callbacks=[programs.on(on_epoch_end=fail)],
        )
    model.set_weights(weights)
    return replica_after(strategy, model, data(worker, 2))


def stopped_before_unfreezing(strategy, worker):
    """The chief stops in epoch 1; meanwhile the other one begins epoch 2.

    Its callback has a new optimizer then, in whose first step all would meet.

    Returns:
        The name of the error of `fit`.
    """
    with strategy.scope():
        layer = keras.layers.Dense(1, trainable=False)
        model = keras.Sequential([keras.Input([ROWS]), layer])
        model.add(keras.layers.Dense(COLUMNS))
        model.compile("sgd", Product())

    def stop(epoch, logs=None):
        model.stop_training = worker == 0
        if worker == 0:
            handshake.wait_for("begun")

    def unfreeze(epoch, logs=None):
        if epoch == 1:
            pathlib.Path("begun").touch()
            layer.trainable = True
            with strategy.scope():
                model.compile("sgd", Product())
            model.make_train_function()

    callbacks = [programs.on(on_epoch_begin=unfreeze, on_epoch_end=stop)]
    try:
        model.fit(data(worker, 2), epochs=3, verbose=0, callbacks=callbacks)
    except RuntimeError as error:
        return type(error).__name__


def loss_scale(strategy, worker):
    """One of four steps of a worker overflows, which is no update."""
    model = model_of(
        strategy,
        lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(RATE), initial_scale=8.0
        ),
    )
    batches = data(worker, 4)
    if worker == 1:
        bad = [np.full([1, n], np.inf, "float32") for n in (ROWS, COLUMNS)]
        batches = tasks.unshared(
            data(worker, 3).concatenate(
                tf.data.Dataset.from_tensors(tuple(bad))
            )
        )
    return replica_after(strategy, model, batches)


class TwoHeads(keras.Model):
    """Trains the head that a batch names, and the other one not at all."""

    def __init__(self):
        super().__init__()
        self.heads = [
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
            for _ in range(2)
        ]
        for head in self.heads:
            head.build((None, 1))
        self.built = True

    def train_step(self, data):
        """Takes the step of a batch `(head, input)`."""
        number, x = data
        variables = self.heads[int(number[0])].trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.heads[int(number[0])](x))
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def heads_in_another_order(strategy, worker):
    """Each worker trains another head of one model, of equal shapes."""
    with strategy.scope():
        model = TwoHeads()
        model.compile(keras.optimizers.SGD(1.0), run_eagerly=True)
    batch = np.array([worker]), np.ones([1, 1], "float32")
    data = tasks.unshared(tf.data.Dataset.from_tensors(batch).repeat(3))
    try:
        model.fit(data, verbose=0)
    finally:
        weights = [head.get_weights()[0].item() for head in model.heads]
        assert weights == [0.0, 0.0]


def another_optimizer(strategy, worker):
    """Steps of one optimizer, many of worker 1; what the next one's sees."""
    with strategy.scope():
        variables = [keras.Variable([0.0]) for _ in range(2)]
        optimizers = [keras.optimizers.SGD(1.0) for _ in range(2)]
    for k, steps in enumerate([80 if worker == 1 else 1, 1]):
        for _ in range(steps):
            strategy.run(optimizers[k].apply, ([tf.ones([1])], [variables[k]]))
    return {"first": variables[0].numpy().item()}


def models_in_another_order(strategy, worker):
    """Each worker begins with another one of two models of equal shapes."""
    with strategy.scope():
        variables = [keras.Variable([0.0]) for _ in range(2)]
        optimizers = [keras.optimizers.SGD(1.0) for _ in range(2)]
    for k in (worker, 1 - worker):
        apply = optimizers[k].apply
        strategy.run(apply, ([tf.ones([1])], [variables[k]]))


def monitored(strategy, worker):
    """Two fits, in which the chief has trained before the other goes on.

    Returns:
        Of each the bytes that the chief has received: by its
        `ClusterMonitor`'s summary, in records of steps, and by all counts.
    """
    model = model_of(strategy)
    monitor = tfdist.callbacks.ClusterMonitor("monitored", verbose=0)
    found = []
    for number in range(2):
        mark = pathlib.Path(f"the chief has trained {number}")

        def look(batch, logs, mark=mark):
            if worker == 0 and batch == 2:
                mark.touch()
            if worker == 1:
                handshake.wait_for(mark)

        before = _bytes_received(strategy)
        model.fit(
            data(worker, 3),
            verbose=0,
            callbacks=[programs.on(on_train_batch_end=look), monitor],
        )
        if worker == 0:
            rows = map(json.loads, monitor.jsonl_path.open())
            found.append(
                (
                    monitor.summary["bytes_received"],
                    sum(row["bytes_received"] for row in rows),
                    _bytes_received(strategy) - before,
                )
            )
    return found


def _bytes_received(strategy):
    channels = strategy._engine.channels
    return sum(int(one.counts[:, account.BYTES].sum()) for one in channels)
