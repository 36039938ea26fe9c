"""Workers that are slow, stopped or killed while they train."""

import time

import keras
import tensorflow as tf

from tests.multi_process import handshake
from tests.multi_process import tasks
from tests.peers import main
from tests.peers import programs
import tfdist
from tfdist.peers import messages


class Pace(keras.callbacks.Callback):
    """Counts steps, takes its time, and waits where the test says so."""

    def __init__(self, seconds, hold, until):
        """Makes the callback.

        Args:
            seconds: To pause after each step.
            hold: After this number of steps wait until told to go on.
            until: Stops training when the test tells this.
        """
        super().__init__()
        self._seconds = seconds
        self._hold = hold
        self._until = until
        self._tally = handshake.Tally(f"{tasks.label()}.steps")
        self._ended = time.monotonic()
        self.steps = 0
        self.longest = 0.0

    def on_train_batch_end(self, batch, logs=None):
        """Notes a step that is done."""
        self.steps += 1
        self._tally.add()
        now = time.monotonic()
        if self.steps > 2:  # The first one is traced.
            self.longest = max(self.longest, now - self._ended)
        if self._seconds:
            time.sleep(self._seconds)
        if self.steps == self._hold:
            handshake.wait_for(f"go on {tasks.label()}")
        if self._until is not None:
            self.model.stop_training = handshake.told(self._until)
        self._ended = time.monotonic()


def train(
    steps,
    compression=None,
    pace=0.0,
    hold=None,
    until=None,
    capacity=None,
    worker_timeout=10.0,
    warmup_peers=None,
    epochs=1,
    meets=False,
):
    """Trains with constant gradients; reports what it sees in the end.

    Args:
        steps: Of this worker.
        compression: Of the strategy.
        pace: Seconds to pause after each step.
        hold: After this number of steps wait until told to go on.
        until: What the test tells to stop.
        capacity: Messages that its inbox takes.
        worker_timeout: Of the strategy.
        warmup_peers: Of the strategy.
        epochs: Of so many steps each.
        meets: Whether workers call `strategy.barrier()` before.
    """
    if capacity is not None:
        messages.CAPACITY = capacity
    strategy = main.strategy_of(
        compression, warmup_peers, worker_timeout=worker_timeout
    )
    if meets:
        strategy.barrier()
    model = programs.model_of(strategy)
    seen = fit(strategy, model, steps, Pace(pace, hold, until), epochs)
    if seen is None:
        return
    handshake.report(
        **seen,
        residual=programs.residual(strategy),
        counts=strategy.update_counts(),
        merged=sum(
            sender._backlog.merged
            for channel in strategy._engine.channels
            for sender in channel.transport.senders
        ),
    )


def train_saved(directory, epochs):
    """Trains with a `ClusterCheckpoint`, five steps an epoch.

    Args:
        directory: Of the checkpoints.
        epochs: Of `fit`.
    """
    strategy = main.strategy_of("threshold(tau=0.0625)")
    seen = fit_saved(strategy, directory, epochs)
    handshake.report(**seen, residual=programs.residual(strategy))


def fit(strategy, model, steps, paces, epochs=1):
    """Trains with constant gradients.

    Args:
        strategy: of the worker.
        model: its model.
        steps: of this worker.
        paces: a `Pace`.
        epochs: of so many steps each.

    Returns:
        What it sees in the end, a dict; None if `fit` fails, as reported.
    """
    replica = programs.Replica()
    try:
        model.fit(
            programs.data(strategy.cluster.worker_id, steps),
            epochs=epochs,
            verbose=0,
            callbacks=[paces, replica],
        )
    except tf.errors.UnavailableError as error:
        handshake.report(error=error.message)
        return None
    return {
        "replica": replica.weights.ravel().tolist(),
        "after": model.get_weights()[0].ravel().tolist(),
        "steps": paces.steps,
        "longest": paces.longest,
    }


def fit_saved(strategy, directory, epochs):
    """Trains with a `ClusterCheckpoint`, five steps an epoch.

    Args:
        strategy: of the worker.
        directory: of the checkpoints.
        epochs: of `fit`.

    Returns:
        What it sees in the end, a dict.
    """
    model = programs.model_of(strategy)
    checkpoint = tfdist.callbacks.ClusterCheckpoint(directory)
    model.fit(
        programs.data(strategy.cluster.worker_id, 5),
        epochs=epochs,
        verbose=0,
        callbacks=[checkpoint],
    )
    return {
        "weights": model.get_weights()[0].ravel().tolist(),
        "resumed": checkpoint.resumed_epoch,
        "updates": strategy.updates_applied(),
    }
