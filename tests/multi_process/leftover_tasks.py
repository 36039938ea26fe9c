"""Workers that die in mid-step, and one that looks at what that leaves."""

import os
import signal

import keras
import tensorflow as tf

from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist
from tfdist.runtime.exchange import step


def _strategy():
    return tfdist.SoftSyncStrategy(
        s=2,
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=60.0, worker_timeout=3.0, server_timeout=60.0
        ),
    )


def _ledger(strategy, model):
    """The ledger of a model's optimizer, made if need be."""
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    strategy.commit()
    counter = step.step_counter(model.optimizer)
    return strategy._runtime.coordination.prepare(counter)


class _Look(keras.callbacks.Callback):
    """Counts the gradients that lie on each server, after each step."""

    def __init__(self, strategy, ledger):
        super().__init__()
        self.most = [0] * len(strategy._runtime.store.devices)

        @tf.function(autograph=False)
        def sizes():
            found = []
            for shard, device in enumerate(strategy._runtime.store.devices):
                with tf.device(device):
                    size = tf.raw_ops.MapSize(
                        dtypes=ledger._renewal._staged[shard],
                        shared_name=ledger.name_of("gradients"),
                    )
                with tf.device(strategy._runtime.store.worker_device):
                    found.append(tf.identity(size))
            return found

        self._sizes = sizes

    def on_train_batch_end(self, batch, logs=None):
        """Stops the training when nothing is left, once the test says so."""
        del batch, logs
        self.now = [int(size) for size in self._sizes()]
        self.most = list(map(max, self.most, self.now))
        if handshake.told("look"):
            self.model.stop_training = not any(self.now)


def look():
    """Trains until nothing lies on the servers any more."""
    strategy = _strategy()
    model = tasks.build_sum_of_weights(strategy)
    callback = _Look(strategy, _ledger(strategy, model))
    model.fit(
        tasks.own_data(1.0),
        steps_per_epoch=1000000,
        verbose=0,
        callbacks=[callback],
    )
    handshake.report(now=callback.now, most=callback.most)


def die(when):
    """Kills itself in its first step.

    Args:
        when: "before" it tells of its gradient, which is on the servers; or
            "after" that, and before it carries anything out.
    """
    strategy = _strategy()
    model = tasks.build_sum_of_weights(strategy)
    ledger = _ledger(strategy, model)
    arrive = ledger.arrive

    def kill_after(operations):
        def kill():
            os.kill(os.getpid(), signal.SIGKILL)

        with tf.control_dependencies(operations):
            with tf.device(strategy._runtime.store.worker_device):
                return tf.numpy_function(kill, [], [])

    def arrive_and_die(key, pulled, after, *rest):
        if when == "before":
            after = [kill_after(after)]
        decision = arrive(key, pulled, after, *rest)
        if when == "after":
            kill_after([decision.head.op])
        return decision

    ledger.arrive = arrive_and_die
    model.fit(tasks.own_data(1.0), steps_per_epoch=10, verbose=0)
