"""Minimization of models of which some layers lie on helpers.

Run as a program, with a directory as its argument, it is a task of a launched
cluster. Its model holds in its second portion while the directory has a file
`hold-K`, K the number of the worker.
"""

import itertools
import json
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import handshake
from tests.sandblaster import tasks
from tests.sandblaster.tasks import fit
import tfdist
from tfdist import placement

HELD_STEP = 4  # In the middle of the second portion, of 3 batches each.
_HOLD_SECONDS = 120.0
_meetings = itertools.count()
# Name of a layer -> number of the helper, in one model after the other.
PLACEMENTS = ({}, {"first": 0, "middle": 1, "last": 1})


def make_model(strategy, where, kind=keras.Model, **arguments):
    """A compiled network, the same each time.

    Args:
        strategy: the strategy.
        where: dict of the name of a layer to the number of a helper.
        kind: class of the model.
        **arguments: of `compile`.
    """
    keras.utils.set_random_seed(7)
    with strategy.scope():
        inputs = x = keras.Input((tasks.FEATURES,))
        decay = keras.regularizers.L2(tasks.DECAY)
        for name in ("first", "middle"):
            x = keras.layers.Dense(
                6, "tanh", kernel_regularizer=decay, name=name
            )(x)
        model = kind(inputs, keras.layers.Dense(tasks.CLASSES, name="last")(x))
        devices = {name: f"helper:{k}/CPU:0" for name, k in where.items()}
        if devices:
            placement.place(model, devices)
        compile_as(model, **arguments)
    return model


def compile_as(model, **arguments):
    """Compiles a model with a new optimizer."""
    model.compile(
        tfdist.sandblaster.LBFGS(memory=4, value_tolerance=0.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        # Not 0 for the first batch: else another one is computed twice, too.
        metrics=["sparse_categorical_crossentropy"],
        **arguments,
    )


def meet(strategy):
    """Waits for the other workers.

    One that still is in a `fit` when the chief begins the next one does not
    see how the first one has ended.
    """
    number = next(_meetings)
    pathlib.Path(f"{strategy.cluster.worker_id} is at {number}").touch()
    for worker in range(strategy.cluster.num_workers):
        handshake.wait_for(f"{worker} is at {number}")


def fit_twice(strategy, model):
    """Two fits, the second with a frozen layer; returns all numbers."""
    x, y = tasks.data()
    first = fit(model, 6, validation_data=(x[:7], y[:7]))
    meet(strategy)
    with strategy.scope():
        model.get_layer("middle").trainable = False
        compile_as(model)
    second = fit(model, 3)
    meet(strategy)
    return {
        "numbers": [first, second],
        "evaluated": model.evaluate(x, y, verbose=0),
        "predicted": model.predict(x, verbose=0).ravel().tolist(),
        "weights": tasks.weights_of(model),
    }


def train():
    """Trains the same model at several places, and reports."""
    strategy = tfdist.SandblasterStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0), seed=1
    )
    found, devices = [], []
    for where in PLACEMENTS:
        model = make_model(strategy, where)
        found.append(fit_twice(strategy, model))
        devices.append({v.path: v.value.device for v in model.variables})
    eager = make_model(strategy, {"middle": 0}, run_eagerly=True)
    handshake.report(found=found, devices=devices, eager=fit(eager, 3)["loss"])


class Held(keras.Model):
    """A model of which a step waits as long as a file is there."""

    file = None
    _steps = -2  # Those that see whether it is the same twice do not count.

    def train_step(self, data):
        """As Keras's."""
        x, y = data
        held = tf.py_function(self._wait, [x], x.dtype)
        held.set_shape(x.shape)
        return super().train_step((held, y))

    def _wait(self, x):
        if self._steps == HELD_STEP and self.file.exists():
            print("holding", flush=True)
            end = time.monotonic() + _HOLD_SECONDS
            while self.file.exists() and time.monotonic() < end:
                time.sleep(0.02)
        self._steps += 1
        return x


def main(directory):
    """Is a task of a launched cluster."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    strategy = tfdist.SandblasterStrategy(
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=120.0, worker_timeout=4.0, server_timeout=120.0
        ),
        seed=1,
    )
    model = make_model(strategy, {"middle": 0}, Held)
    worker = strategy.cluster.worker_id
    model.file = pathlib.Path(directory) / f"hold-{worker}"
    found = {
        "worker": worker,
        "losses": fit(model, 12)["loss"],
        "weights": tasks.weights_of(model),
        "examples": [one["totals"][1] for one in strategy._training.iterations],
        "evaluations": [one["evaluations"] for one in strategy.iterations],
        "counts": strategy.portion_counts(),
        "devices": [v.value.device for v in model.variables],
    }
    print("found", json.dumps(found), flush=True)


def undisturbed():
    """Losses and weights of `main`'s model in one process, without helpers."""
    strategy = tfdist.SandblasterStrategy(portions_per_worker=16)
    model = make_model(strategy, {})
    losses = fit(model, 12)["loss"]
    return losses, np.array(tasks.weights_of(model))


if __name__ == "__main__":
    main(sys.argv[1])
