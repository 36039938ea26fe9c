"""Workers whose late gradients are corrected, and that may be killed."""

import json
import os
import time

import keras
import numpy as np

from tests.multi_process import failure_tasks
from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist
from tfdist import correction
from tfdist.runtime.exchange import step as step_lib

RATE = 0.01
SHAPES = ((7,), (3, 5))  # One on each server.


class Record:
    """What happened at each step, in a file that survives `kill -9`.

    A line is [update that the gradient was, versions pulled after it from
    each server, weights of those servers after it]. The first one is of before
    the first step: `fit` may have pulled later ones than the script, and then
    nobody has seen the weights (None).
    """

    def __init__(self, strategy, model):
        self._strategy, self._model = strategy, model
        self._file = os.open(
            f"{tasks.label()}.record", os.O_WRONLY | os.O_CREAT | os.O_APPEND
        )
        self._line = None
        self._note(None)

    def note(self, logs=None):
        """Notes a step that is done."""
        del logs
        update = None
        for exchange in self._strategy.journal.read_new():
            if self._line is not None:
                pulled = list(exchange.pulled_by_server)
                if pulled != self._line[1]:
                    self._line = [None, pulled, [None] * len(pulled)]
                self._write()
            update = min(self._pulled) + exchange.staleness
        self._note(update)
        self._write()

    def _note(self, update):
        runtime = self._strategy._runtime
        pulled = [int(p.numpy()) for p in self._versions(runtime)]
        self._line = [update, pulled, self._weights(runtime)]

    def _write(self):
        self._pulled = self._line[1]
        os.write(self._file, f"{json.dumps(self._line)}\n".encode())
        self._line = None

    def _versions(self, runtime):
        for ledger in runtime.coordination.ledgers:
            return ledger._pulled
        return [
            runtime.store.pulled_version(k)
            for k in range(runtime.store.num_shards)
        ]

    def _weights(self, runtime):
        """One number per server: its weight's elements are alike."""
        weights = [None] * runtime.store.num_shards
        for weight in self._model.trainable_weights:
            values = np.ravel(weight.numpy())
            # Up to the rounding of vector and scalar instructions.
            np.testing.assert_allclose(values, values[0], rtol=1e-5, atol=1e-7)
            shard = weight.value.shard
            assert weights[shard] is None
            weights[shard] = values[0].item()
        return weights


def train(name, arguments, value, until, pace=0.0):
    """Pushes `value`; records each step, and reports the end.

    Args:
        name: of a `Correction`.
        arguments: of it.
        value: the gradient.
        until: what the test tells, or a number of steps.
        pace: seconds to pause after each step.
    """
    strategy = tfdist.ParameterServerStrategy(
        correction=getattr(correction, name)(**arguments),
        fault_tolerance=tasks.PATIENT,
    )
    with strategy.scope():
        optimizer = keras.optimizers.SGD(RATE)
    model = tasks.build_sum_of_weights(strategy, optimizer, SHAPES)
    with strategy.scope():
        optimizer.build(model.trainable_variables)
    strategy.pull()
    if strategy._runtime.corrector.is_on_servers:
        # So that it is known what the first gradient is computed from.
        counter = step_lib.step_counter(optimizer)
        strategy._runtime.coordination.prepare(counter)
    record = Record(strategy, model)

    def after_step(logs):
        record.note(logs)
        time.sleep(pace)

    model.fit(
        tasks.own_data(value),
        steps_per_epoch=1000000,
        verbose=0,
        callbacks=[
            failure_tasks.TellProgress(until, after_step),
            tasks.WaitAfterFirstStep(),
        ],
    )
    strategy.barrier()
    handshake.report(
        updates=strategy.updates_applied(),
        iterations=int(optimizer.iterations.numpy()),
        weights=[np.ravel(w).tolist() for w in model.get_weights()],
        final=record._weights(strategy._runtime),
        counts=strategy.gradient_counts(),
    )
