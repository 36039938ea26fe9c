"""Workers that something happens to while they train."""

import os
import signal
import time

import keras
import tensorflow as tf

from tests.multi_process import elections
from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist
from tfdist.cluster import member_table


def decisions_of(until):
    """Who decides when workers stop: each, if each counts its own steps."""
    return "each" if isinstance(until, int) else "chief"


class TellProgress(keras.callbacks.Callback):
    """Counts steps where `kill -9` cannot reach, and stops when told."""

    def __init__(self, until, note=None):
        """Makes the callback.

        Args:
            until: stops training when the test tells this; a number of steps
                stops it by itself.
            note: function of the batch's logs, called after each.
        """
        super().__init__()
        self._until = until
        self._note = note
        self._tally = handshake.Tally(f"{tasks.label()}.steps")
        self._steps = 0

    def on_epoch_begin(self, epoch, logs=None):
        """Tells of an epoch, counted from 0."""
        del logs
        print("begins epoch", epoch, flush=True)

    def on_train_batch_end(self, batch, logs=None):
        """Notes a step that is done."""
        del batch
        self._tally.add()
        self._steps += 1
        if self._note is not None:
            self._note(logs)
        if isinstance(self._until, int):
            self.model.stop_training = self._steps >= self._until
        else:
            self.model.stop_training = handshake.told(self._until)


def train(
    value,
    until,
    start_timeout=60.0,
    pace=0.0,
    shapes=None,
    hold=0,
    lost_after=member_table.LOST_AFTER_SECONDS,
    server_timeout=60.0,
    steps_per_epoch=1000000,
    epochs=1,
):
    """Pushes `value` until told to stop; reports what it sees in the end.

    Args:
        value: the gradient.
        until: what the test tells, or a number of steps.
        start_timeout: of the strategy, seconds.
        pace: seconds to pause after each step.
        shapes: of the weights; `None` for the usual ones.
        hold: after this number of steps wait until told to go on.
        lost_after: seconds after which a silent worker is not waited for.
        server_timeout: of the strategy, seconds.
        steps_per_epoch: of `fit`.
        epochs: of `fit`.
    """
    member_table.LOST_AFTER_SECONDS = lost_after
    strategy = tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=start_timeout, server_timeout=server_timeout
        ),
        decisions=decisions_of(until),
    )
    elections.watch(strategy)
    print("connected", flush=True)
    model = tasks.build_sum_of_weights(strategy, shapes=shapes or tasks.SHAPES)
    losses = []

    def after_step(logs):
        losses.append(logs["loss"])
        time.sleep(pace)
        if len(losses) == hold:
            print("holding", flush=True)
            handshake.wait_for("go on")

    try:
        model.fit(
            tasks.own_data(value),
            steps_per_epoch=steps_per_epoch,
            epochs=epochs,
            verbose=0,
            callbacks=[TellProgress(until, after_step)],
        )
        print("trained", flush=True)
        strategy.barrier()
    except Exception as error:
        handshake.report(error=type(error).__name__, message=str(error))
        raise
    exchanges = strategy.journal.read_new()
    handshake.report(
        losses=losses,
        versions=[e.version for e in exchanges],
        staleness=[e.staleness for e in exchanges],
        states=states(strategy),
        elections=elections.noted(strategy),
        **outcome(strategy, model),
    )


def outcome(strategy, model):
    """What has become of a `SumOfWeights` and of what was pushed, a dict."""
    parts = model.layers[-1].parts
    return {
        "updates": strategy.updates_applied(),
        "iterations": int(model.optimizer.iterations.numpy()),
        "parts": [p.numpy().ravel().tolist() for p in parts],
        "placement": [p.value.shard for p in parts],
        "counts": strategy.push_counts(),
        "recoveries": [
            [event.servers, event.restored_by_this_worker]
            for event in strategy.recoveries
        ],
    }


def states(strategy):
    """Returns what the first server knows of the workers, by name."""
    return {m.name: m.state.name for m in strategy._membership.read()}


def raise_after_a_step():
    """Trains for one step and has a bug."""
    strategy = tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0)
    )
    model = tasks.build_sum_of_weights(strategy)
    model.fit(tasks.own_data(1.0), steps_per_epoch=1, verbose=0)
    raise ArithmeticError("a bug of the user")


def stop_with_the_lock():
    """Takes the first server's lock and is stopped while it holds it."""
    strategy = tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0)
    )
    runtime = strategy._runtime

    def stop():
        print("stopped with the lock", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)

    @tf.function(autograph=False)
    def hold():
        lock = runtime.store.lock(0)
        with tf.control_dependencies([lock.op]):
            with tf.device(runtime.store.worker_device):
                stopped = tf.numpy_function(stop, [], [])
        with tf.control_dependencies([stopped]):
            runtime.store.unlock(0, lock)

    hold()
