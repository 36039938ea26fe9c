"""Workers whose servers a test kills at moments that it chooses."""

import contextlib
import sys
import threading
import time

import keras
import tensorflow as tf

from tests.multi_process import elections
from tests.multi_process import failure_tasks
from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist
from tfdist import synchronization as methods
from tfdist.callbacks import ClusterCheckpoint

ELEMENTS = 8
WEIGHTS = "saved.weights.h5"
_METHODS = {"async": methods.Async(), "sync": methods.Sync()}
_STAY_SECONDS = 60.0
_POLL_SECONDS = 0.05


def shapes(elements=ELEMENTS):
    """Of the model's weights, of which each of two servers has two."""
    return ((elements,),) * 4


class StaysInUpdate(keras.optimizers.SGD):
    """SGD that stays in the middle of an update on a server when told so.

    Where the test tells `apply-<server>`, the next update on that server
    changes its first variable, says so in the file `applying-<server>`, and
    goes on with the second one long after.
    """

    def __init__(self, **kwargs):
        """Makes SGD with a rate of one."""
        super().__init__(1.0, **kwargs)
        self._first = {}

    def update_step(self, gradient, variable, learning_rate):
        """Runs on the server."""
        first = self._first.setdefault(variable.shard, variable)
        before = [] if first is variable else [_stay_if_told(first)]
        with tf.control_dependencies(before):
            super().update_step(gradient, variable, learning_rate)


def _stay_if_told(first):
    """Builds the stay between two updates; returns the operation."""

    def stay():
        value = tf.strings.as_string(tf.reduce_max(first.read_value()))
        with tf.control_dependencies(
            [tf.io.write_file(f"applying-{first.shard}", value)]
        ):
            end = tf.timestamp() + _STAY_SECONDS
        (now,) = tf.while_loop(
            lambda now: now < end, lambda now: (tf.timestamp(),), [end - 1.0]
        )
        return now

    # No constant: the files are to be looked for in each step.
    pattern = tf.where(tf.timestamp() > 0.0, f"apply-{first.shard}", "")
    is_told = tf.size(tf.io.matching_files(pattern)) > 0
    return tf.cond(is_told, stay, lambda: tf.zeros([], tf.float64)).op


@contextlib.contextmanager
def telling_of_a_wait(what):
    """Scope that prints `in <what>` when TensorFlow's runtime does not return.

    That is so where it waits for a server that the test has stopped.
    """
    caller, over = threading.get_ident(), threading.Event()

    def watch():
        last, times = None, 0
        while not over.wait(_POLL_SECONDS):
            frame = sys._current_frames()[caller]
            now = (frame.f_code, frame.f_lasti, id(frame))
            times = times + 1 if now == last else 0
            last = now
            if times == 5 and "tensorflow" in frame.f_code.co_filename:
                print(f"in {what}", flush=True)
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class WhenTold(keras.callbacks.Callback):
    """Does something between two steps, once the test tells its name."""

    def __init__(self, name, action):
        super().__init__()
        self._name, self._action = name, action
        self._number = 0

    def on_train_batch_end(self, batch, logs=None):
        del batch, logs
        name = f"{self._name} {self._number}"
        if handshake.told(name):
            self._number += 1
            print(f"about to {name}", flush=True)
            handshake.wait_for(f"{name} now")
            with telling_of_a_wait(name):
                self._action()
            print(f"over: {name}", flush=True)


def train(synchronization="async", nonfinite="drop", elements=ELEMENTS):
    """Pushes ones until told to stop; the chief pulls and saves when told.

    Args:
        synchronization: a key of `_METHODS`.
        nonfinite: of the strategy.
        elements: of each of the model's weights.
    """
    strategy = tfdist.ParameterServerStrategy(
        synchronization=_METHODS[synchronization],
        nonfinite=nonfinite,
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=60.0, server_timeout=60.0
        ),
    )
    elections.watch(strategy)
    with strategy.scope():
        optimizer = StaysInUpdate()
    model = tasks.build_sum_of_weights(strategy, optimizer, shapes(elements))
    checkpoint = ClusterCheckpoint("checkpoints", save_freq=10**6, keep=10)
    callbacks = [checkpoint, failure_tasks.TellProgress("stop", _pace)]
    if strategy.cluster.is_chief:
        callbacks += [
            WhenTold("pull", strategy.pull),
            WhenTold("save", checkpoint._save),
            WhenTold("save weights", lambda: model.save_weights(WEIGHTS)),
        ]
    model.fit(
        tasks.own_data(1.0),
        steps_per_epoch=10**6,
        verbose=0,
        callbacks=callbacks,
    )
    strategy.barrier()
    handshake.report(
        elections=elections.noted(strategy),
        **failure_tasks.outcome(strategy, model),
        all_counts=strategy.gradient_counts(),
    )


def _pace(logs):
    del logs
    time.sleep(0.005)
