"""A worker whose training can be let go on and held, whatever its method.

A step sleeps for as long as a device would compute, so that many workers fit
on one machine. The chosen workers are slower at random in some of their steps.
"""

import dataclasses
import threading
import time
import traceback

import numpy as np

from harness import own_batches
import tfdist

FEATURES = 64
UNITS = 64
CLASSES = 10
BATCH_SIZE = 8
BACKUP_WORKERS = 1
GRADIENTS_PER_UPDATE = 2  # Of softsync.
MAX_STALENESS = 3


@dataclasses.dataclass(frozen=True)
class Sleeps:
    """How long the steps of the workers sleep.

    Attributes:
        seconds: of every step.
        times: how many times as long a slow step takes.
        probability: that a step of a slow worker is slow.
        slow_workers: numbers of the workers that are slow at random.
    """

    seconds: float
    times: float
    probability: float
    slow_workers: tuple[int, ...]

    def stragglers(self, worker, seed):
        """The callbacks that delay the steps of a worker, a list."""
        from tfdist.testing import Straggler

        # No `workers`: under TensorFlow's own strategy all are worker 0.
        always = Straggler(self.seconds)
        if worker not in self.slow_workers:
            return [always]
        more = self.seconds * (self.times - 1)
        # The seed differs from worker to worker for the same reason.
        seed = 1000 * seed + worker
        return [
            always,
            Straggler(more, probability=self.probability, seed=seed),
        ]

    def draw(self, worker, count):
        """Sleeps as of a worker's steps, `(count,) float64`, seconds."""
        sleeps = np.full(count, self.seconds)
        if worker in self.slow_workers:
            slow = np.random.default_rng(worker).random(count)
            sleeps[slow < self.probability] *= self.times
        return sleeps

    def mean(self, worker):
        """Mean sleep of a worker's step, seconds."""
        slow = self.probability if worker in self.slow_workers else 0.0
        return self.seconds * (1.0 + slow * (self.times - 1))


# Method -> what makes the strategy of a worker, or serves and does not return.
STRATEGIES = {
    "sync": lambda: tfdist.ParameterServerStrategy(
        synchronization=tfdist.synchronization.Sync(backup_workers=0)
    ),
    "backup_workers": lambda: tfdist.BackupWorkersStrategy(
        backup_workers=BACKUP_WORKERS
    ),
    "softsync": lambda: tfdist.SoftSyncStrategy(s=GRADIENTS_PER_UPDATE),
    "bounded_staleness": lambda: tfdist.BoundedStalenessStrategy(
        max_staleness=MAX_STALENESS
    ),
    "async": lambda: tfdist.AsyncStrategy(),
}


def serve(method):
    """Runs a parameter server of tfdist; does not return."""
    STRATEGIES[method]()


def tfdist_worker(method, worker, sleeps, seed):
    """Builds a worker of tfdist, which trains with `model.fit`.

    Args:
        method: a key of `STRATEGIES`.
        worker: its number.
        sleeps: the `Sleeps`.
        seed: of the slow steps.

    Returns:
        A `Training`.
    """
    strategy = STRATEGIES[method]()
    model = _compiled_model(strategy)
    data = own_batches.whole(_batches())

    def train(gate):
        callbacks = [gate, *sleeps.stragglers(worker, seed)]
        _fit(model, data, callbacks)

    def read():
        return [
            (e.time, e.version, getattr(e, "accepted", True))
            for e in strategy.journal.read_new()
        ]

    return Training(train, read)


def lone_worker(worker, sleeps, seed):
    """Builds a worker that trains a model of its own in plain Keras.

    Args:
        worker: its number.
        sleeps: the `Sleeps`.
        seed: of the slow steps.

    Returns:
        A `Training`, whose records have no number of updates.
    """
    import tensorflow as tf

    model = _compiled_model(tf.distribute.get_strategy())

    def train(gate):
        callbacks = [gate, *sleeps.stragglers(worker, seed)]
        _fit(model, _batches(), callbacks)

    return Training(train)


def mirrored_worker(worker, sleeps, seed):
    """Builds a worker of TensorFlow's own `MultiWorkerMirroredStrategy`.

    It is a loop around `own_batches.mirrored_step`.

    Args:
        worker: its number.
        sleeps: the `Sleeps`.
        seed: of the slow steps.

    Returns:
        A `Training`.
    """
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    model = _compiled_model(strategy)
    step = own_batches.mirrored_step(strategy, model, _batches())

    def train(gate):
        callbacks = [gate, *sleeps.stragglers(worker, seed)]
        for callback in callbacks:
            callback.set_model(model)
            callback.on_train_begin()
        while True:
            for callback in callbacks:
                callback.on_train_batch_begin(0)
            step()
            gate.on_train_batch_end(0)

    return Training(train, numbered=True)


class Training:
    """Training in a thread of its own, behind a gate that is shut at first.

    Args:
        train: callable that trains for ever, with the callback it is given.
        read: callable that returns the records since its last call: list of
            (seconds since the epoch, updates by then, whether accepted).
            Default: one per step.
        numbered: whether each step is one update, for the default `read`;
            else the number of updates is None.
    """

    def __init__(self, train, read=None, *, numbered=False):
        import keras

        self._open = threading.Event()
        self._ends = []
        self._position = 0
        self._error = None
        self._numbered = numbered
        self._read = read or self._read_ends
        training = self

        class Gate(keras.callbacks.Callback):
            """Holds each step until the gate is open; notes when it ends."""

            def on_train_batch_begin(self, batch, logs=None):
                training._open.wait()

            def on_train_batch_end(self, batch, logs=None):
                training._ends.append(time.time())

        def run():
            try:
                train(Gate())
            except Exception:  # Whatever it is, who asks next gets it.
                self._error = traceback.format_exc()

        threading.Thread(target=run, daemon=True).start()

    def __call__(self, command):
        """Answers `"open"`, `"close"`, `"steps"` (made so far) or `"read"`."""
        if self._error:
            raise RuntimeError(self._error)
        if command == "open":
            return self._open.set()
        if command == "close":
            return self._open.clear()
        return len(self._ends) if command == "steps" else self._read()

    def _read_ends(self):
        first, self._position = self._position, len(self._ends)
        return [
            (self._ends[k], k + 1 if self._numbered else None, True)
            for k in range(first, self._position)
        ]


def _fit(model, data, callbacks):
    """Trains for ever."""
    model.fit(
        data,
        steps_per_epoch=10**9,
        callbacks=callbacks,
        shuffle=False,
        verbose=0,
    )


def _compiled_model(strategy):
    import keras

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([FEATURES]),
                keras.layers.Dense(UNITS, activation="relu"),
                keras.layers.Dense(CLASSES),
            ]
        )
        model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=False)
    return model


def _batches():
    """The same batch again and again."""
    import tensorflow as tf

    x = tf.ones([BATCH_SIZE, FEATURES])
    y = tf.zeros([BATCH_SIZE, CLASSES])
    return tf.data.Dataset.from_tensors((x, y)).repeat()
