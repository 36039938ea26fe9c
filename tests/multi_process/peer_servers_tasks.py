"""Groups whose parameter servers others read, and who read those of others."""

import itertools
import os
import threading
import time

import keras
import numpy as np

from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist
from tfdist.codistillation import Checkpoint
from tfdist.codistillation import Group
from tfdist.codistillation import PeerServers
from tfdist.codistillation import PeerUnavailableError
from tfdist.codistillation import weights as weights_lib

FEATURES, SPLIT_AT = 7, 4
BATCH_SIZE = 8


class Calls(keras.layers.Layer):
    """Counts its calls, in an integer that belongs to each worker."""

    def build(self, input_shape):
        """Makes the counter."""
        del input_shape
        self.count = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False
        )

    def call(self, inputs, training=False):
        """Returns the inputs."""
        if training:
            self.count.assign_add(1)
        return inputs


def build_model(units=40):
    """A model with all kinds of variables."""
    return keras.Sequential(
        [
            keras.Input([FEATURES]),
            keras.layers.Dense(units),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            Calls(),
            keras.layers.Dense(3),
        ]
    )


def split(shape, dtype):
    """Splits the first kernel in two pieces of 4 and 3 rows."""
    del dtype
    return [2 if shape[0] == FEATURES else 1, *([1] * (len(shape) - 1))]


def data(seed, batches):
    """Batches of noise, for one worker."""
    random = np.random.default_rng(seed)
    return random.normal(size=(BATCH_SIZE * batches, FEATURES)), random.normal(
        size=(BATCH_SIZE * batches, 3)
    )


def train(model, seed, steps):
    """Takes some steps."""
    x, y = data(seed, steps)
    model.fit(x, y, batch_size=BATCH_SIZE, verbose=0)


def checkpoint_of(group, run, step):
    """What the callback gives to `PeerServers.publish`."""
    return Checkpoint(
        group=group,
        number=0,
        step=step,
        time=time.time(),
        run=run,
        initial=f"initial of {run}",
    )


def teach(run, servers, group=1):
    """Trains, says where its weights are, and trains on when told.

    Args:
        run: name of this life.
        servers: of all groups.
        group: its number.
    """
    strategy = tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0),
        variable_partitioner=split,
    )
    with strategy.scope():
        model = build_model()
        model.compile(keras.optimizers.Adam(0.01), "mse")
    exchange = PeerServers(servers, timeout=60.0)
    exchange.bind(Group(group, len(servers)), model)
    for lesson in itertools.count(1):
        train(model, lesson, steps=3)
        strategy.barrier()
        # Here, and not in a thread: the test is to find it when it is told.
        exchange.publish(checkpoint_of(group, run, 0))
        draft = f"{tasks.label()}-{lesson}.draft.npz"
        np.savez(draft, *weights_lib.snapshot(model))
        os.rename(draft, f"{tasks.label()}-{lesson}.npz")
        print(f"lesson {lesson} of {run} at {_updates(strategy)}", flush=True)
        handshake.wait_for(f"{run} lesson {lesson + 1}")


def _updates(strategy):
    return max(strategy.updates_applied())


def exchange_both_ways(group, servers, local_steps):
    """Trains and exchanges in a thread, as the callback does.

    Args:
        group: number of this group.
        servers: of all groups.
        local_steps: of the strategy, or `None`.
    """
    strategy = tfdist.ParameterServerStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0),
        local_steps=local_steps,
    )
    keras.utils.set_random_seed(group)
    with strategy.scope():
        model = build_model()
        model.compile("sgd", "mse")
    exchange = PeerServers(servers, timeout=60.0)
    exchange.bind(Group(group, len(servers)), model)
    found, unavailable, over = [], [], threading.Event()

    def exchange_often():
        while not over.is_set():
            exchange.publish(checkpoint_of(group, f"run {group}", 0))
            try:
                newest = found[-1] if found else None
                came = exchange.fetch(1 - group, newest)
            except PeerUnavailableError as error:
                unavailable.append(str(error))
                continue
            if came is not None:
                found.append(came)

    thread = threading.Thread(target=exchange_often, daemon=True)
    train(model, group, steps=1)
    thread.start()
    told = False
    while not handshake.told("all have enough"):
        train(model, group, steps=20)
        if len(found) >= 10 and not told:
            told = True
            print("enough came", flush=True)
    strategy.barrier()
    np.savez("mine.npz", *weights_lib.snapshot(model))
    print("trained", flush=True)
    handshake.wait_for("all have trained")
    over.set()
    thread.join(120.0)
    last = exchange.fetch(1 - group, None)
    exchange.close()
    np.savez("theirs.npz", *last.weights)
    handshake.report(
        numbers=[c.number for c in found],
        steps=[c.step for c in found],
        finite=all(np.isfinite(w).all() for c in found for w in c.weights),
        unavailable=unavailable,
        last={"number": last.number, "step": last.step, "run": last.run},
        iterations=int(model.optimizer.iterations.numpy()),
        updates=strategy.updates_applied(),
    )
