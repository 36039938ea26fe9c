"""Workers that exchange local steps, with servers or without."""

import collections
import gc

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist

# By worker: examples in a batch, and batches where data ends unevenly.
SIZES = (3, 8, 5)
UNEVEN = (7, 4, 9)
# Else; whole periods of all methods.
EVEN = 12


def train(communication):
    """Trains by each method in turn, in a ring also on uneven data.

    Args:
        communication: of the strategies.
    """
    common = {
        "communication": communication,
        "fault_tolerance": tasks.PATIENT,
        "seed": 1,
        "synchronization": tfdist.synchronization.Sync(),
    }
    reports = {}
    methods = {
        "diloco": (
            tfdist.DiLoCoStrategy(4, **common),
            {"optimizer": _optimizer("SGD")},
        ),
        "elastic": (
            tfdist.ElasticAveragingStrategy(2, **common),
            {"optimizer": _optimizer("SGD", momentum=0.9)},
        ),
    }
    for name, (strategy, arguments) in methods.items():
        reports[name] = _fit(strategy, **arguments)
    if communication == "ring":
        strategy = tfdist.ParameterAveragingStrategy(
            3, average_optimizer_state=True, **common
        )
        reports["uneven"] = _fit(
            strategy,
            _optimizer("Adam", learning_rate=0.01),
            batches=UNEVEN,
            fits=2,
            # Ends of data fall into the middle of a loop of steps.
            steps_per_execution=4,
        )
    handshake.report(**reports)


def _optimizer(name, **config):
    return {"class_name": name, "config": config}


def _fit(strategy, optimizer, batches=(EVEN,) * 3, fits=1, **compile_arguments):
    worker = strategy.cluster.worker_id
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([4]),
                keras.layers.Dense(
                    5,
                    # Its gradient would be nothing but rounding errors.
                    use_bias=False,
                    # What only the chief's first values may decide.
                    kernel_initializer=keras.initializers.RandomNormal(
                        seed=worker + 1
                    ),
                ),
                keras.layers.BatchNormalization(momentum=0.8),
                keras.layers.Dense(1),
            ]
        )
        model.compile(
            keras.optimizers.get(optimizer), "mse", **compile_arguments
        )
    steps = batches[worker]
    random = np.random.default_rng(worker)
    x = random.normal(size=(steps * SIZES[worker], 4)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] ** 2))
    for _ in range(fits):
        model.fit(tasks.unshared(data.batch(SIZES[worker])), verbose=0)
    strategy.barrier()
    exchanges = strategy.journal.read_new()
    return {
        "weights": [w.ravel().tolist() for w in model.get_weights()],
        "state": [
            v.numpy().ravel().tolist() for v in model.optimizer.variables[2:]
        ],
        "updates": strategy.updates_applied()[0],
        "local_steps": [e.local_steps for e in exchanges],
        "bytes": [[e.bytes_sent, e.bytes_received] for e in exchanges],
        "over": bool(strategy.training_is_over()),
    }


def start_alone():
    """Waits for workers that never come; reports what it hears."""
    try:
        tfdist.ParameterAveragingStrategy(
            2,
            communication="ring",
            fault_tolerance=tfdist.FaultTolerance(start_timeout=2.0),
        )
    except TimeoutError as error:
        handshake.report(error=str(error))


def train_other(period):
    """Begins to train in a way that may be another one; reports the error.

    Args:
        period: of the averaging.
    """
    strategy = tfdist.ParameterAveragingStrategy(
        period,
        communication="ring",
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0),
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    try:
        model.fit(np.ones([8, 4]), np.ones([8, 1]), batch_size=2, verbose=0)
    except ValueError as error:
        handshake.report(error=str(error))


def one_after_the_other(models):
    """Trains models in turn, which each worker deletes at another moment.

    Reports how many variables there are after each, and what they come to.

    Args:
        models: how many.
    """
    strategy = tfdist.ParameterAveragingStrategy(
        2,
        communication="ring",
        seed=1,
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0),
    )
    worker = strategy.cluster.worker_id
    # The last worker deletes a model when two others have been trained.
    kept = collections.deque(maxlen=worker)
    variables, weights = [], []
    for _ in range(models):
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input([4]),
                    keras.layers.Dense(3),
                    keras.layers.BatchNormalization(),
                    keras.layers.Dense(1),
                ]
            )
            model.compile(keras.optimizers.SGD(0.125, momentum=0.5), "mse")
        x = np.full([SIZES[worker], 4], worker + 1.0)
        data = tf.data.Dataset.from_tensors((x, x[:, :1])).repeat(3)
        for _ in range(2):
            model.fit(tasks.unshared(data), verbose=0)
        strategy.barrier()
        weights.append([value.tolist() for value in model.get_weights()])
        kept.append(model)
        del model
        keras.backend.clear_session()
        gc.collect()
        strategy.commit()
        variables.append(len(list(strategy._runtime.store.variables)))
    handshake.report(
        variables=variables,
        functions=sum(
            len(traced._functions) for traced in strategy._runtime.store.traced
        ),
        weights=weights,
        seen=[
            [value.tolist() for value in model.get_weights()] for model in kept
        ],
    )
