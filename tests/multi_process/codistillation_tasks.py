"""Groups that teach each other, until the test has seen enough."""

import contextlib

import keras
import numpy as np

from tests.multi_process import handshake
from tests.multi_process.failure_tasks import TellProgress
import tfdist
from tfdist import codistillation

FEATURES, CLASSES, BATCH = 6, 4, 8


class TellWhatCame(keras.callbacks.Callback):
    """Says how often weights have come from a peer, and when none could."""

    def __init__(self, codistilling):
        super().__init__()
        self._codistilling = codistilling
        self._told = self._missed = 0

    def on_train_batch_end(self, batch, logs=None):
        del batch, logs
        records = self._codistilling.records
        received = sum("teacher_step" in record for record in records)
        if received > self._told:
            self._told = received
            print(f"received {received}", flush=True)
        missed = len(records) - received
        if missed > self._missed:
            self._missed = missed
            print(f"missed {missed}", flush=True)


def data(group):
    """Batches without end, each group's own."""
    stream = np.random.default_rng(group.index)
    weights = np.random.default_rng(100).standard_normal((FEATURES, CLASSES))
    while True:
        x = stream.standard_normal((BATCH, FEATURES)).astype("float32")
        yield x, np.argmax(x @ weights, axis=1)


def train(group, num_groups, directory=None, servers=None, in_cluster=False):
    """Trains until told to stop; reports what came.

    Args:
        group: number of this group.
        num_groups: of all groups.
        directory: a shared directory, or None.
        servers: addresses of all groups' servers, or None.
        in_cluster: whether to train under a strategy.
    """
    group = codistillation.Group(group, num_groups)
    strategy = (
        tfdist.AsyncStrategy(
            fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0)
        )
        if in_cluster
        else None
    )
    keras.utils.set_random_seed(group.index)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = codistillation.Codistilled(
            keras.Sequential(
                [
                    keras.Input((FEATURES,)),
                    keras.layers.Dense(8, activation="relu"),
                    keras.layers.BatchNormalization(),
                    keras.layers.Dense(CLASSES),
                ]
            ),
            burn_in_steps=10,
        )
        model.compile(
            "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
    if directory is not None:
        exchange = codistillation.SharedDirectory(directory)
    else:
        exchange = codistillation.PeerServers(servers, timeout=5.0)
    callback = codistillation.Codistillation(
        exchange, group=group, exchange_every=5
    )
    history = model.fit(
        data(group),
        steps_per_epoch=1_000_000,
        verbose=0,
        callbacks=[callback, TellProgress("stop"), TellWhatCame(callback)],
    )
    if strategy is not None:
        strategy.barrier()
    x, y = next(data(group))
    handshake.report(
        records=callback.records,
        summary=callback.summary,
        skipped=getattr(exchange, "skipped", []),
        step=int(model.optimizer.iterations),
        steps=len(strategy.journal.read_new()) if strategy else None,
        loss=history.history["loss"][-1],
        evaluated=model.evaluate(x, y, verbose=0),
    )
