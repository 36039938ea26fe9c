"""Programs of which the outcome is special to `GossipStrategy`."""

import json

import numpy as np

from tests import waits
from tests.all_reduce import programs as all_reduce_programs
from tests.peers import gossip_main
from tests.peers import programs
import tfdist


def constant_gradients(strategy, worker, steps=40):
    """Reports the replica at the end of `fit`, the weights, and all counts."""
    model = gossip_main.model_of(strategy)
    replica = programs.Replica()
    model.fit(programs.data(worker, steps), verbose=0, callbacks=[replica])
    return {
        "replica": replica.weights.ravel().tolist(),
        "after": model.get_weights()[0].ravel().tolist(),
        "counts": strategy.exchange_counts(),
    }


def monitored(strategy, worker):
    """Bytes sent of the records of a `ClusterMonitor`, and of all messages."""
    model = programs.model_of(strategy)
    monitor = tfdist.callbacks.ClusterMonitor("gossip", verbose=0)

    def look(batch, logs):
        (channel,) = strategy._engine.lanes[-1].channels
        # The step has begun an exchange, which the next one sees the end of.
        if batch > 10:
            waits.wait_until(
                lambda: channel.request is None,
                lambda: "the exchange has ended",
            )

    model.fit(
        programs.data(worker, 16),
        verbose=0,
        callbacks=[
            all_reduce_programs.on(on_train_batch_end=look),
            monitor,
        ],
    )
    (channel,) = strategy._engine.lanes[-1].channels
    rows = list(map(json.loads, monitor.jsonl_path.open()))
    return {
        "sent": sum(row["bytes_sent"] for row in rows),
        "messages": channel.sent,
        "staleness": [row["staleness"] for row in rows],
        "worker": worker,
    }


def restored(strategy, worker):
    """Callbacks set other weights on each worker when training has ended."""
    model = programs.model_of(strategy)

    def restore(logs=None):
        model.set_weights([np.full_like(w, worker) for w in model.weights])

    model.fit(
        programs.data(worker, 2),
        verbose=0,
        callbacks=[
            all_reduce_programs.on(on_train_end=restore),
            tfdist.callbacks.ClusterMonitor(verbose=0),
        ],
    )
    return np.unique(model.get_weights()[0]).tolist()


def loop_before_fit(strategy, worker):
    """A loop without an end, then `fit` at rate 0: weights after its steps."""
    model = programs.model_of(strategy)
    for batch in programs.data(worker, 20):
        model.train_on_batch(*batch)
    model.optimizer.learning_rate = 0.0
    found = []

    def look(batch, logs):
        found.append(model.get_weights()[0].ravel().tolist())

    model.fit(
        programs.data(worker, 4),
        verbose=0,
        callbacks=[all_reduce_programs.on(on_train_batch_end=look)],
    )
    return found
