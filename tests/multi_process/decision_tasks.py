"""Workers with an arithmetic model, whose callbacks decide.

The model is a dense layer without a bias, the loss its mean output and the
optimizer SGD at a rate of one: a gradient is the mean of its batch, and the
weight is minus the sum of all that was applied.
"""

import pathlib

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist

METHODS = {
    "async": tfdist.AsyncStrategy,
    "sync": lambda **kwargs: tfdist.ParameterServerStrategy(
        synchronization=tfdist.synchronization.Sync(), **kwargs
    ),
    "backup": tfdist.BackupWorkersStrategy,
    "softsync": lambda **kwargs: tfdist.SoftSyncStrategy(2, **kwargs),
    "averaging": lambda **kwargs: tfdist.ParameterAveragingStrategy(
        2, **kwargs
    ),
    "diloco": lambda **kwargs: tfdist.DiLoCoStrategy(
        2, outer_optimizer=lambda workers: keras.optimizers.SGD(0.5), **kwargs
    ),
}


class At(keras.callbacks.Callback):
    """Calls functions after batches, by their number from 1."""

    def __init__(self, functions):
        super().__init__()
        self._functions = functions

    def on_train_batch_end(self, batch, logs=None):
        """Calls that of this batch."""
        if batch + 1 in self._functions:
            self._functions[batch + 1](self.model)


def set_rate(rate):
    """A function that sets the learning rate of a model."""

    def apply(model):
        model.optimizer.learning_rate = rate

    return apply


def stop(model):
    """Stops the training of a model."""
    model.stop_training = True


def data(*values):
    """A batch with each of the values, for this worker alone."""
    x = np.array(values, np.float32)[:, None, None]
    return tasks.unshared(tf.data.Dataset.from_tensor_slices((x, x)))


class Program:
    """One strategy and one model, which several calls of `fit` train."""

    def __init__(self, method, value, worker_timeout=60.0, **kwargs):
        """Makes them.

        Args:
            method: a key of `METHODS`.
            value: by worker, of its batches.
            worker_timeout: so that nobody is gone for being slow.
            **kwargs: of the strategy.
        """
        self.method = method
        self.strategy = METHODS[method](
            fault_tolerance=tfdist.FaultTolerance(
                start_timeout=60.0, worker_timeout=worker_timeout
            ),
            **kwargs,
        )
        self.is_chief = self.strategy.cluster.is_chief
        self.worker = self.strategy.cluster.worker_id
        self.value = value[self.worker]
        with self.strategy.scope():
            self.model = keras.Sequential(
                [
                    keras.Input((1,)),
                    keras.layers.Dense(
                        1, use_bias=False, kernel_initializer="zeros"
                    ),
                ]
            )
            self.compile(keras.optimizers.SGD(1.0))
        self.seen = {}

    def compile(self, optimizer):
        """Compiles the model."""
        self.model.compile(optimizer, lambda y, output: tf.reduce_mean(output))

    def fit(self, *values, callbacks=(), **kwargs):
        """Trains on a batch with each value."""
        self.model.fit(
            data(*values), verbose=0, callbacks=[*callbacks], **kwargs
        )

    def weight(self):
        """The weight, as it is here."""
        return float(self.model.get_weights()[0][0, 0])

    def note(self, name):
        """Notes what the cluster has come to, together with the others."""
        self.strategy.barrier()
        self.seen[name] = [
            self.weight(),
            int(self.model.optimizer.iterations.numpy()),
            {
                worker: counts["accepted"]
                for worker, counts in self.strategy.gradient_counts().items()
            },
        ]

    def set_weight(self, weight):
        """Assigns the weight."""
        self.model.set_weights([np.array([[weight]], np.float32)])

    def reset(self):
        """All begin again with a weight of zero and a rate of one."""
        self.strategy.barrier()
        self.set_weight(0.0)
        self.model.optimizer.learning_rate = 1.0

    # What is tried.

    def rates(self, name, chief):
        """Worker 1 sets a rate, and stops; the chief does `chief`.

        While the chief trains, another one's decision does not count. And
        nobody is a batch ahead of worker 1: with a backup worker it could
        wait for gradients of those who have ended.
        """
        mine = dict(chief) if self.is_chief else {}
        if self.worker == 1:
            mine = {2: set_rate(0.25), 4: stop}
        for batch in range(1, 6):
            mine[batch] = self.keep_pace(
                f"{self.method} {name} {batch}", mine.get(batch)
            )
        self.fit(*[self.value] * 6, callbacks=[At(mine)])
        self.note(name)

    def keep_pace(self, file, function):
        """What is done at the end of a batch, before or after worker 1."""

        def at_end(model):
            if function is not None:
                function(model)
            if self.worker == 1:
                pathlib.Path(file).touch()
            else:
                handshake.wait_for(file)

        return at_end

    def stops(self):
        """The chief stops after its third batch; the others would not."""
        endless = data(self.value).repeat()
        mine = At({3: stop} if self.is_chief else {})
        self.model.fit(
            endless, steps_per_epoch=10**6, verbose=0, callbacks=[mine]
        )
        self.note("stops")

    def best(self):
        """Stops early, and goes back to the best weights."""
        early = keras.callbacks.EarlyStopping(
            "val_loss", patience=1, restore_best_weights=True
        )
        self.fit(
            *[2.0] * 2,
            *[-1.0] * 20,
            callbacks=[early],
            steps_per_epoch=2,
            epochs=11,
            validation_data=data(1.0),
        )
        here = self.weight()
        best = float(np.ravel(early.best_weights[0])[0])
        self.seen["best"] = [best, here]

    def assigned(self, name):
        """The chief assigns the weight between two calls of `fit`."""
        self.fit(*[self.value] * 4)
        if self.is_chief:
            self.set_weight(100.0)
            between = int(self.model.optimizer.iterations.numpy())
        else:
            between = 0
        self.fit(*[self.value] * 4)
        self.note(name)
        self.seen[name].append(between)

    def outlive_chief(self):
        """Worker 1 would stop at once; the chief never."""
        steps = []

        class Count(keras.callbacks.Callback):
            """Counts batches, and stops after each."""

            def on_train_batch_end(self, batch, logs=None):
                steps.append(batch)
                if len(steps) == 5:
                    print("goes on", flush=True)
                self.model.stop_training = True

        endless = data(1.0).repeat()
        mine = [] if self.is_chief else [Count()]
        self.model.fit(
            endless, steps_per_epoch=10**6, verbose=0, callbacks=mine
        )
        # Nor is the chief waited for, or followed, later on.
        self.fit(1.0, 1.0, 1.0, callbacks=[At({2: stop})])
        return len(steps)

    def run(self, trials):
        """Tries what is asked for, one after the other."""
        for trial in trials:
            if trial.startswith("halved"):
                self.rates(trial, {3: set_rate(0.5)})
            elif trial == "kept":
                self.rates(trial, {})
            elif trial == "assigned by chief":
                self.assigned(trial)
            else:
                getattr(self, trial)()
            self.reset()
        return self.seen


def run(programs):
    """Runs programs one after the other; reports what each has come to.

    Args:
        programs: a list of a method, the workers' values, and what is tried.
    """
    seen = {}
    for method, values, trials in programs:
        print("program", method, flush=True)
        seen[method] = Program(method, values).run(trials)
    handshake.report(**seen)


def decide_alone():
    """Without the chief's decisions; then until the chief is killed."""
    program = Program("async", [1.0, 1.0], decisions="each")
    mine = {1: set_rate(0.5), 2: stop} if program.worker else {}
    program.fit(*[1.0] * 6, callbacks=[At(mine)])
    program.note("each")

    program.seen["after the chief"] = Program(
        "async", [1.0, 1.0], worker_timeout=4.0
    ).outlive_chief()
    handshake.report(**program.seen)
