"""Workers of every strategy that train while servers die and come back."""

import re
import time

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import failure_tasks
from tests.multi_process import handshake
import tfdist
from tfdist import correction
from tfdist import synchronization
from tfdist.cluster import manifests
from tfdist.cluster import table_snapshots

STRATEGIES = {
    "async": tfdist.AsyncStrategy,
    "sync": lambda **kwargs: tfdist.BackupWorkersStrategy(0, **kwargs),
    "backup": lambda **kwargs: tfdist.BackupWorkersStrategy(1, **kwargs),
    "softsync": lambda **kwargs: tfdist.SoftSyncStrategy(2, **kwargs),
    "bounded": lambda **kwargs: tfdist.BoundedStalenessStrategy(2, **kwargs),
    "dcasgd": tfdist.DCASGDStrategy,
    "dana": tfdist.DANAStrategy,
    "fasgd": lambda **kwargs: tfdist.ParameterServerStrategy(
        synchronization=synchronization.Async(),
        correction=correction.FASGD(),
        **kwargs,
    ),
    "averaging": lambda **kwargs: tfdist.ParameterAveragingStrategy(
        4, **kwargs
    ),
    "elastic": lambda **kwargs: tfdist.ElasticAveragingStrategy(
        period=4, **kwargs
    ),
    "diloco": lambda **kwargs: tfdist.DiLoCoStrategy(period=4, **kwargs),
    # Of their models, see `SumsRows`.
    **dict.fromkeys(
        ("table", "dynamic_table"),
        lambda **kwargs: tfdist.AsyncStrategy(table_bytes=1, **kwargs),
    ),
}
ROWS = 3000


class SumsRows(keras.layers.Layer):
    """Passes its input on, and adds rows of a table to the loss.

    The gradient of every third row is one, so that with SGD at a rate that is
    a power of two a row is minus the rate times the updates that are in it.

    Args:
        dynamic: whether ids get their rows in training.
    """

    def __init__(self, dynamic):
        super().__init__()
        if dynamic:
            self.table = tfdist.layers.DynamicEmbedding(
                1, ROWS, initializer=0.0
            )
        else:
            self.table = keras.layers.Embedding(
                ROWS, 1, embeddings_initializer="zeros"
            )

    def call(self, inputs):
        """Adds the loss."""
        self.add_loss(keras.ops.sum(self.table(np.arange(0, ROWS, 3))))
        return inputs

    def updates_in_rows(self, rate):
        """By server, how many updates there are in each row that has any.

        Args:
            rate: the learning rate.
        """
        ids = np.arange(ROWS)
        counts = np.asarray(self.table(ids))[:, 0] / -rate
        assert not counts[ids % 3 > 0].any()
        table = self.table.embeddings.value
        if table.is_dynamic:
            shard, _ = table.index.place(tf.constant(ids))
        else:
            shard, _ = table.partitions.place(ids)
        is_trained = ids % 3 == 0
        return [
            sorted(set(counts[is_trained & (np.asarray(shard) == k)].tolist()))
            for k in range(int(np.max(shard)) + 1)
        ]


def serve(directory=None, every=30.0, stripe_bytes=None):
    """Is a parameter server that keeps snapshots.

    Args:
        directory: of the snapshots.
        every: seconds between two.
        stripe_bytes: of tables in them; `None` for the usual.
    """
    if stripe_bytes is not None:
        table_snapshots.STRIPE_BYTES = stripe_bytes
    tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=60.0, snapshot_dir=directory, snapshot_every=every
        )
    )


def tell_less(untold):
    """Leaves some out of what this process tells servers to keep.

    As if it had told them before it knew of these.

    Args:
        untold: pattern of names of resources on servers.
    """
    text_of = manifests.text_of

    def text_of_less(groups):
        return text_of(
            [
                {
                    **group,
                    "variables": {
                        name: dtype
                        for name, dtype in group["variables"].items()
                        if not re.search(untold, name)
                    },
                }
                for group in groups
            ]
        )

    manifests.text_of = text_of_less


def regression():
    """A linear regression that is learnt fast: x (512, 8), y (512, 1)."""
    random = np.random.default_rng(0)
    x = random.normal(size=(512, 8)).astype("float32")
    return x, x @ random.normal(size=(8, 1)).astype("float32")


def applied_by_worker(strategy):
    """What each server has applied of each worker; empty with a ledger."""
    runtime = strategy._runtime
    return [
        counts.numpy()[: strategy.cluster.num_workers].tolist()
        for shard in range(runtime.store.num_shards)
        for counts in runtime.gradient_counts.pulled(shard)
    ]


def train(
    strategy,
    until="stop",
    pace=0.0,
    server_timeout=60.0,
    worker_timeout=60.0,
    epochs=1,
    rate=None,
    untold=None,
):
    """Trains until told to stop; reports what became of its gradients.

    Args:
        strategy: name of one of `STRATEGIES`.
        until: what the test tells, or a number of steps.
        pace: seconds to pause after each step.
        server_timeout: of the strategy.
        worker_timeout: of the strategy.
        epochs: how many to train.
        rate: the learning rate; `None` for one for two workers.
        untold: see `tell_less`; `None` to tell servers of all.
    """
    if untold is not None:
        tell_less(untold)
    has_table = strategy.endswith("table")
    sums_rows = [SumsRows(strategy == "dynamic_table")] if has_table else []
    without = has_table or strategy in ("dana", "averaging")
    momentum = 0.0 if without else 0.5
    # DANA's momentum is 0.9.
    if rate is None:
        rate = 0.005 if strategy == "dana" else 0.05
    strategy = STRATEGIES[strategy](
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=60.0,
            worker_timeout=worker_timeout,
            server_timeout=server_timeout,
        ),
        decisions=failure_tasks.decisions_of(until),
    )
    print("connected", flush=True)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                *sums_rows,
                keras.layers.Dense(16, activation="tanh"),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.SGD(rate, momentum=momentum),
            loss="mse",
        )
    poisoned = []

    def after_step(logs):
        if not np.isfinite(logs["loss"]) and not poisoned:
            poisoned.append(time.time())
            print(f"loss {logs['loss']} at {strategy.updates_pulled()}")
        time.sleep(pace)

    x, y = regression()
    before = float(np.mean((model.predict(x, verbose=0) - y) ** 2))
    try:
        model.fit(
            x,
            y,
            batch_size=16,
            epochs=1000000 if isinstance(until, str) else epochs,
            verbose=0,
            callbacks=[failure_tasks.TellProgress(until, after_step)],
        )
        print("trained", flush=True)
        strategy.barrier()
        after = float(np.mean((model.predict(x, verbose=0) - y) ** 2))
    except Exception as error:
        handshake.report(error=type(error).__name__, message=str(error))
        raise
    handshake.report(
        before=before,
        after=after,
        counts=strategy.push_counts(),
        all_counts=strategy.gradient_counts(),
        updates=strategy.updates_applied(),
        by_worker=applied_by_worker(strategy),
        weights=[
            w.numpy().ravel().tolist()
            for w in model.weights
            if "embeddings" not in w.path
        ],
        recoveries=[
            [event.seconds, event.servers, event.restored_by_this_worker]
            for event in strategy.recoveries
        ],
        lost_by_rows=[event.lost_by_rows for event in strategy.recoveries],
        rows=[layer.updates_in_rows(rate) for layer in sums_rows],
    )
