"""Runs of methods with and without servers on real processes.

The data, the network, the size of batches and the learning rates are those of
`decentralized_runs`. Each method has a cluster of its own, which trains with
one seed after the other.
"""

import time

import numpy as np

from harness import clusters
from harness import decentralized_runs
from harness import decentralized_tasks
import tfdist

METHODS = (
    "server",
    "peers",
    "peers, threshold 1/250",
    "gossip",
    "synchronous",
)
_SECONDS = 900.0


def play(task, method, workers, rate, seeds):
    """Trains with a method on a cluster of its own.

    Args:
        task: name of a task.
        method: one of `METHODS`.
        workers: number of workers.
        rate: the learning rate.
        seeds: of the split of the data, first weights and the order of the
            examples; a list.

    Yields:
        For each seed a dict that JSON can hold. Accuracies are those of the
        first worker's replica at the end of each of its epochs, and (`final`,
        on the test data) after `fit`; bytes and
        staleness are means over workers and over their steps.
    """
    with clusters.Cluster(
        (_worker, task, method),
        (_strategy, method),
        ps=int(method == "server"),
        workers=workers,
        forked=True,
        name=method,
    ) as cluster:
        cluster.wait_until_built()
        for seed in seeds:
            found = cluster.ask_all(seed, rate, timeout=_SECONDS)
            steps = sum(one["steps"] for one in found)
            yield {
                "task": task,
                "method": method,
                "workers": workers,
                "rate": rate,
                "seed": seed,
                "real": True,
                "curve": found[0]["curve"],
                "final": found[0]["final"],
                "diverged": not np.isfinite(found[0]["norm"]),
                "seconds": max(one["seconds"] for one in found),
                "staleness": sum(one["staleness"] for one in found) / steps,
                "sent": sum(one["sent"] for one in found) / workers,
                "received": sum(one["received"] for one in found) / workers,
                "steps": steps,
            }


def _strategy(method):
    """Makes the strategy of a method; on a server this does not return."""
    if method == "server":
        return tfdist.AsyncStrategy()
    if method == "synchronous":
        return tfdist.AllReduceStrategy()
    # On a busy machine, a worker may stand still for long.
    patient = tfdist.FaultTolerance(worker_timeout=120.0)
    if method == "gossip":
        return tfdist.GossipStrategy(seed=1, fault_tolerance=patient)
    codec = decentralized_runs.ALL[method][1]
    return tfdist.PeerToPeerStrategy(codec, fault_tolerance=patient)


def _worker(name, method):
    """Builds a worker; see `children.Child`.

    Returns:
        A callable of a seed and a learning rate, that trains and returns a
        dict.
    """
    import keras
    import tensorflow as tf

    strategy = _strategy(method)
    task = decentralized_tasks.make(name)
    options = tf.data.Options()
    # By batches, as virtual workers take them.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.DATA
    )

    def train(seed, rate):
        (x, y), *parts = task.split(seed)
        data = (
            tf.data.Dataset.from_tensor_slices((x, y))
            .shuffle(len(x), seed=seed)
            .batch(task.batch_size)
            .with_options(options)
        )
        with strategy.scope():
            model = task.model(seed)
        model.optimizer.learning_rate = rate
        began, curve = time.perf_counter(), []

        def vector():
            return np.concatenate([w.ravel() for w in model.get_weights()])

        def evaluate(epoch, logs):
            row = [task.accuracy(vector(), *part) for part in parts]
            curve.append([epoch + 1, time.perf_counter() - began, *row])

        callbacks = []
        if strategy.cluster.is_chief:
            evaluate(-1, None)
            callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=evaluate)]
        strategy.journal.read_new()
        model.fit(
            data,
            epochs=task.epochs,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )
        exchanges = strategy.journal.read_new()
        return {
            "curve": curve,
            # With gossip, all workers have the mean now.
            "final": float(task.accuracy(vector(), *parts[-1])),
            "norm": float(np.linalg.norm(vector())),
            "seconds": time.perf_counter() - began,
            "steps": len(exchanges),
            "staleness": float(sum(e.staleness or 0 for e in exchanges)),
            "sent": sum(e.bytes_sent for e in exchanges),
            "received": sum(e.bytes_received for e in exchanges),
        }

    return train
