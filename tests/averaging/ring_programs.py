"""Programs of two workers that average every two steps without servers.

As those of `tests.all_reduce.programs`: gradients are the data, the rate is 1.
"""

import keras
import numpy as np

from tests.all_reduce.programs import batches
from tests.all_reduce.programs import linear
from tests.all_reduce.programs import on
from tests.all_reduce.programs import weight_of
from tests.multi_process import handshake
import tfdist


def train_saved(directory, epochs):
    """Trains with a `ClusterCheckpoint`, in periods that do not fit an epoch.

    Args:
        directory: of the checkpoints.
        epochs: of `fit`.
    """
    strategy = tfdist.ParameterAveragingStrategy(2, communication="ring")
    with strategy.scope():
        model = linear()
    checkpoint = tfdist.callbacks.ClusterCheckpoint(directory)
    model.fit(
        batches(np.ones(3 - strategy.cluster.worker_id)),
        epochs=epochs,
        verbose=0,
        callbacks=[checkpoint],
    )
    handshake.report(weight=weight_of(model), resumed=checkpoint.resumed_epoch)


def two_optimizers_alternating(strategy, worker):
    """Two models that train in turns, in a loop."""
    with strategy.scope():
        models = linear(), linear()
    for _ in range(2):
        for model in models:
            x = np.ones([1, 1], "float32")
            try:
                model.train_on_batch(x, x)
            except ValueError as error:
                return str(error)
    strategy.barrier()
    return [weight_of(model) for model in models]


def _train(strategy, fit, *settings):
    """Trains with settings of SGD; returns what comes of it."""
    with strategy.scope():
        model = linear(keras.optimizers.SGD(*settings))
    x = np.ones([1, 1], "float32")
    try:
        if fit:
            model.fit(batches(np.ones(4)), verbose=0)
        else:
            for _ in range(4):
                model.train_on_batch(x, x)
            strategy.barrier()
    except ValueError as error:
        return str(error)
    return weight_of(model)


def another_optimizer_in_fit(strategy, worker):
    """One worker has another setting of it."""
    return _train(strategy, True, 1.0, [0.0, 0.5][worker])


def another_optimizer_in_a_loop(strategy, worker):
    """The same, in a loop of its own."""
    return _train(strategy, False, 1.0, [0.0, 0.5][worker])


def another_rate_in_fit(strategy, worker):
    """One worker has another rate from the beginning."""
    return _train(strategy, True, [1.0, 7.0][worker])


def another_rate_in_a_loop(strategy, worker):
    """The same, in a loop of its own."""
    return _train(strategy, False, [1.0, 7.0][worker])


def weights_set_by_one_worker(strategy, worker):
    """In a callback within `fit`."""
    with strategy.scope():
        model = linear()

    def load(batch, logs=None):
        if batch == 1 and worker == 1:
            model.set_weights([np.array([[8.0]])])

    model.fit(
        batches(np.ones(4)), verbose=0, callbacks=[on(on_train_batch_end=load)]
    )
    return weight_of(model)


def the_chief_reads_alone(strategy, worker):
    """After `fit`, in a loop in which the others only train."""
    with strategy.scope():
        model = linear()
    x = np.ones([1, 1], "float32")
    model.fit(batches(np.ones(2)), verbose=0)
    seen = []
    for _ in range(4):
        if worker == 0:
            seen.append(weight_of(model))
            model.evaluate(x, x, verbose=0)
        model.train_on_batch(x, x)
    strategy.barrier()
    return seen, weight_of(model)


def the_chief_stops_after_an_epoch(strategy, worker):
    """All stop at the same epoch."""
    with strategy.scope():
        model = linear()

    def stop(epoch, logs=None):
        model.stop_training = epoch == 1

    calls = [on(on_epoch_end=stop)] if worker == 0 else []
    history = model.fit(
        batches(np.ones(3 - worker)), epochs=5, verbose=0, callbacks=calls
    )
    steps = int(model.optimizer.iterations.numpy())
    return weight_of(model), steps, len(history.epoch)


def one_worker_raises(strategy, worker):
    """The others end their `fit`; the next one is of all again."""
    with strategy.scope():
        model = linear()

    def fail(batch, logs=None):
        if worker == 1 and batch == 2:
            raise KeyError("mine")

    try:
        model.fit(
            batches(np.ones(6)),
            verbose=0,
            callbacks=[on(on_train_batch_end=fail)],
        )
    except KeyError:
        pass
    model.fit(batches(np.ones(6)), verbose=0)
    return weight_of(model), int(model.optimizer.iterations.numpy())


def validation_of_the_chief_alone(strategy, worker):
    """In a callback, while the others wait for its next step."""
    with strategy.scope():
        model = linear()
    losses = []

    def evaluate(epoch, logs=None):
        if worker == 0:
            losses.append(model.evaluate(batches([1.0]), verbose=0))

    model.fit(
        batches(np.ones(2)),
        epochs=2,
        verbose=0,
        callbacks=[on(on_epoch_end=evaluate)],
    )
    return weight_of(model), losses
