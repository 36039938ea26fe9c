"""Runs to their end on a cluster of processes, with a period or without.

Real data, real servers and workers, every byte counted by the workers.
"""

import dataclasses
import time

from harness import clusters
import tfdist

_SECONDS = 600.0


def _sync(period):
    return tfdist.ParameterServerStrategy(
        synchronization=tfdist.synchronization.Sync()
    )


# Method -> what makes the strategy of a period; None where each step is
# exchanged anyway.
STRATEGIES = {
    "sync": _sync,
    "async": lambda period: tfdist.AsyncStrategy(),
    "parameter_averaging": lambda period: tfdist.ParameterAveragingStrategy(
        period
    ),
    "bmuf": lambda period: tfdist.BMUFStrategy(period),
    "diloco": lambda period: tfdist.DiLoCoStrategy(period),
    "easgd": lambda period: tfdist.ElasticAveragingStrategy(period),
}
WITHOUT_PERIOD = ("sync", "async")


@dataclasses.dataclass(frozen=True)
class Training:
    """What all runs of a benchmark have in common.

    Attributes:
        task: name of a task of `tfdist.simulation.tasks`.
        workers: number of workers; there is one server.
        batch_size: examples of a step of one worker.
        epochs: passes over the data, an even number.
        learning_rate: of the workers' SGD.
        momentum: of the same.
        data_dir: where prepared data lies.
    """

    task: str
    workers: int
    batch_size: int
    epochs: int
    learning_rate: float
    momentum: float
    data_dir: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one run.

    Attributes:
        accuracy: on data that was not trained on, 0 to 1.
        loss: on the same.
        examples: that all workers have seen.
        exchanges: of all workers.
        bytes: that all workers have sent and received.
        seconds: of the training.
    """

    accuracy: float
    loss: float
    examples: int
    exchanges: int
    bytes: int
    seconds: float


def play(training, method, period, seed):
    """Trains on a cluster of its own.

    Args:
        training: the `Training`.
        method: a key of `STRATEGIES`.
        period: local steps between two exchanges, or None.
        seed: of weights and of the order of examples.

    Returns:
        An `Outcome`.
    """
    with clusters.Cluster(
        (_worker, training, method, period, seed),
        (_serve, method, period),
        workers=training.workers,
        forked=True,
        environ={"TFDS_DATA_DIR": training.data_dir},
        name=method,
    ) as cluster:
        cluster.wait_until_built()
        answers = cluster.ask_all(timeout=_SECONDS)
    evaluated = next(a["evaluated"] for a in answers if a["evaluated"])
    return Outcome(
        accuracy=evaluated["accuracy"],
        loss=evaluated["loss"],
        examples=training.batch_size * sum(a["steps"] for a in answers),
        exchanges=sum(a["exchanges"] for a in answers),
        bytes=sum(a["bytes"] for a in answers),
        seconds=max(a["seconds"] for a in answers),
    )


def _serve(method, period):
    """Runs a parameter server; does not return."""
    STRATEGIES[method](period)


def _worker(training, method, period, seed):
    """Builds a worker; see `children.Child`.

    Returns:
        A callable that trains to the end, and returns a dict.
    """
    import keras
    import tensorflow as tf

    from tfdist.simulation import tasks

    strategy = STRATEGIES[method](period)
    task = tasks.load(training.task)
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = task.build(training.learning_rate, training.momentum)
    x, y = task.train
    options = tf.data.Options()
    # By batches: each worker gets every `workers`-th, over all epochs.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.DATA
    )
    data = (
        tf.data.Dataset.from_tensor_slices((x, y))
        .shuffle(len(x), seed=seed)
        .batch(training.batch_size, drop_remainder=True)
        .repeat(training.epochs)
        .with_options(options)
    )

    def train():
        started = time.perf_counter()
        model.fit(data, shuffle=False, verbose=0)
        strategy.barrier()
        seconds = time.perf_counter() - started
        evaluated = None
        if strategy.cluster.is_chief:
            evaluated = model.evaluate(
                *task.validation, verbose=0, return_dict=True
            )
        exchanges = strategy.journal.read_new()
        return {
            "seconds": seconds,
            "evaluated": evaluated,
            "steps": sum(e.local_steps for e in exchanges),
            "exchanges": len(exchanges),
            "bytes": sum(e.bytes_sent + e.bytes_received for e in exchanges),
        }

    return train
