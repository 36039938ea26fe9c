"""A script for the launcher: trains, or evaluates beside the training.

What each task ends with goes as JSON to a file in its directory, by rename,
so that a file which exists is whole. Tasks wait for each other by such files.
"""

import json
import os
import pathlib
import sys
import time

import keras
import numpy as np

import tfdist
from tfdist.cluster import member_table

_SECONDS = 120.0
MODES_THAT_MEET = ("built", "unbuilt")
MODE, DIRECTORY = sys.argv[1], pathlib.Path(sys.argv[2])
task = json.loads(os.environ["TF_CONFIG"])["task"]
NAME = f"{task['type']}-{task['index']}"


def tell(name, **content):
    """Leaves the file `name`."""
    draft = DIRECTORY / f"{name}.draft"
    draft.write_text(json.dumps(content))
    draft.rename(DIRECTORY / name)


def wait_for(name):
    """Waits until somebody has told `name`."""
    end = time.monotonic() + _SECONDS
    while not (DIRECTORY / name).exists():
        if time.monotonic() > end:
            raise TimeoutError(f"nobody told {name!r}")
        time.sleep(0.01)


class Calls(keras.layers.Layer):
    """Counts its calls, in evaluations too, and hands its inputs on."""

    def build(self, input_shape):
        """Makes the counter."""
        del input_shape
        self.number = self.add_weight(
            shape=(), initializer="zeros", trainable=False
        )

    def call(self, inputs):
        """Counts."""
        self.number.assign_add(1.0)
        return inputs


class EvaluateBetween(keras.callbacks.Callback):
    """The chief trains on when the evaluator has seen the first epoch."""

    def on_epoch_end(self, epoch, logs=None):
        """Waits for the evaluator."""
        del logs
        if epoch == 0 and NAME == "worker-0":
            tell("one-epoch")
            wait_for("seen")


class TellOfTraining(keras.callbacks.Callback):
    """The evaluator tells when it has evaluated trained parameters."""

    def __init__(self, strategy):
        """Knows the strategy."""
        super().__init__()
        self.strategy = strategy
        self.evaluations = 0

    def on_test_end(self, logs=None):
        """Tells."""
        del logs
        self.evaluations += 1
        if self.strategy.updates_pulled():
            tell("seen")


if MODE == "absent":
    member_table.LOST_AFTER_SECONDS = 15.0
if MODE == "late" and NAME == "evaluator-0":
    wait_for("worker-0.json")
strategy = tfdist.AsyncStrategy(
    fault_tolerance=tfdist.FaultTolerance(start_timeout=_SECONDS)
)
rng = np.random.default_rng(1)
x = rng.normal(size=[512, 8]).astype("float32")
y = (x[:, 0] > 0).astype("int32")
with strategy.scope():
    layers = [
        keras.layers.Dense(16, activation="relu"),
        keras.layers.BatchNormalization(),
        Calls(),
        keras.layers.Dense(2, activation="softmax"),
    ]
    if MODE != "unbuilt":
        layers.insert(0, keras.Input([8]))
    model = keras.Sequential(layers)
    model.compile(
        "adam", "sparse_categorical_crossentropy", metrics=["accuracy"]
    )

if strategy.cluster.is_evaluator:
    teller = TellOfTraining(strategy)
    metrics = tfdist.SidecarEvaluator(
        model,
        data=(x, y),
        log_dir=DIRECTORY / "log",
        interval_seconds=0.2,
        callbacks=[teller],
    ).start()
    tell(
        "evaluator-0.json",
        metrics=metrics,
        evaluations=teller.evaluations,
        variables=len(model.trainable_variables),
    )
else:
    model.fit(
        x[:256],
        y[:256],
        batch_size=16,
        epochs=3,
        verbose=0,
        callbacks=[EvaluateBetween()] if MODE in MODES_THAT_MEET else [],
    )
    strategy.barrier()
    calls = next(float(x.number) for x in layers if isinstance(x, Calls))
    metrics = model.evaluate(x, y, verbose=0, return_dict=True)
    updates = strategy.updates_applied()
    tell(f"{NAME}.json", metrics=metrics, updates=updates, calls=calls)
