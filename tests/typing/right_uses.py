"""Every public name of tfdist, used rightly: checkers find nothing wrong."""

import keras
import numpy as np

import tfdist
from tfdist import averaging
from tfdist import callbacks
from tfdist import cluster
from tfdist import codistillation
from tfdist import compression
from tfdist import correction
from tfdist import datasets
from tfdist import pipeline
from tfdist import placement
from tfdist import sandblaster
from tfdist import simulation
from tfdist import synchronization
from tfdist import testing


def build() -> keras.Model:
    """Returns a model to train."""
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def minimizing() -> keras.optimizers.Optimizer:
    """Returns an optimizer of all data, and makes its strategy."""
    with tfdist.SandblasterStrategy(portions_per_worker=4, seed=1).scope():
        search = sandblaster.StrongWolfe(curvature=0.5)
        return sandblaster.LBFGS(memory=5, line_search=search, damping=True)


def strategies() -> list[tfdist.ParameterServerStrategy]:
    """Returns one of each strategy with servers."""
    adagrad = keras.optimizers.Adagrad(0.1)
    return [
        tfdist.AsyncStrategy(correction=correction.InverseStaleness()),
        tfdist.AllReduceStrategy(nonfinite="fail", seed=1),
        tfdist.PeerToPeerStrategy(compression.Threshold(0.03), seed=1),
        tfdist.GossipStrategy(seed=1),
        tfdist.BackupWorkersStrategy(
            1,
            on_drop="retry",
            fault_tolerance=tfdist.FaultTolerance(worker_timeout=5.0),
        ),
        tfdist.SoftSyncStrategy(),
        tfdist.SoftSyncStrategy(s=2, correction=correction.GapAware()),
        tfdist.BoundedStalenessStrategy(max_staleness=2, seed=1),
        tfdist.DCASGDStrategy(0.04, backups="worker"),
        tfdist.DANAStrategy("dc", 0.9, lambda_0=2.0),
        tfdist.ParameterAveragingStrategy(period=10, warmup_steps=5),
        tfdist.BMUFStrategy(period=lambda step: 10, block_momentum=0.5),
        tfdist.DiLoCoStrategy(500, outer_optimizer=keras.optimizers.SGD(0.7)),
        tfdist.AsyncLocalSGDStrategy(period=50, dynamic=False),
        tfdist.ElasticAveragingStrategy(moving_rate=0.9),
        tfdist.DownpourStrategy(n_fetch=2, n_push=2, outer_optimizer=adagrad),
        tfdist.ParameterServerStrategy(
            synchronization=synchronization.Sync(backup_workers=1),
            local_steps=4,
            nonfinite="fail",
            fault_tolerance=tfdist.FaultTolerance(snapshot_dir="snapshots"),
        ),
        tfdist.ParameterServerStrategy(
            synchronization=synchronization.BoundedStaleness(3),
            correction=correction.DelayCompensation(variance_decay=0.95),
        ),
    ]


def methods() -> list[simulation.Method]:
    """Returns methods made of public parts."""
    return [
        simulation.Method(synchronization.Async(), correction.DANA("zero")),
        simulation.Method(synchronization.SoftSync(n=1), correction.FASGD()),
        simulation.Method(local_steps=averaging.ParameterAveraging(10)),
        simulation.Method(local_steps=averaging.ElasticAveraging(alpha=0.1)),
        simulation.Method(local_steps=averaging.AccruedGradients(2, 2)),
        simulation.Method(
            local_steps=averaging.ParameterAveraging(
                10, averaging.DelayedNesterov(0.7, delay=4)
            )
        ),
    ]


def train(strategy: tfdist.ParameterServerStrategy) -> dict[str, float]:
    """Trains and returns the metrics of the whole cluster."""
    train_data, _ = datasets.load("digits", split=["train", "test"])
    with strategy.scope():
        model = build()
    monitor = callbacks.ClusterMonitor(log_dir="runs", every_batches=10)
    checkpoint = callbacks.ClusterCheckpoint("runs/state", keep=2)
    straggler = testing.Straggler(0.1, workers=[1], distribution="pareto")
    try:
        model.fit(train_data, callbacks=[monitor, checkpoint, straggler])
    except tfdist.ModelFreedError as error:
        print(error)
    config: cluster.ClusterConfig = strategy.cluster
    if config.is_chief:
        print(config.task_name, config.num_workers, strategy.bytes_per_server)
    applied: list[int] = strategy.updates_applied()
    print(sum(applied), strategy.updates_pulled() + 1)
    strategy.publish("topic", {"step": 1})
    strategy.barrier()
    return strategy.cluster_metrics(model)


def codistil(group: codistillation.Group) -> None:
    """Trains in groups."""
    model = codistillation.Codistilled(
        build(),
        burn_in_steps=10,
        loss=codistillation.CodistillationLoss("kl", temperature=2.0),
    )
    exchange: codistillation.Exchange = codistillation.PeerServers()
    if not group.servers:
        exchange = codistillation.SharedDirectory("runs/exchange")
    model.fit(
        group.shard(np.zeros([8, 4])),
        callbacks=[codistillation.Codistillation(exchange, group=group)],
    )


def several_devices() -> placement.Report:
    """Places and pipelines a model."""
    model = placement.place(build(), {"dense*": "CPU:0"})
    chosen: placement.Partition = placement.choose(
        build(), ["CPU:0", "CPU:1"], memory_limit=1e9
    )
    print(chosen.seconds, placement.Devices(("CPU:0",)))
    strategy = tfdist.PipelineStrategy(stages=2, schedule="1f1b")
    with strategy.scope():
        strategy.pipeline(build())
    pipeline.pipeline(build(), 2, micro_batches=4)
    return placement.report(model, batch_size=8)


def simulate() -> simulation.Comparison:
    """Trains with virtual workers."""
    x, y = np.zeros([64, 4]), np.zeros([64, 2])
    compute = simulation.Gamma(0.1) + simulation.Sometimes(
        simulation.Pareto(1.0), probability=0.02
    )
    network = simulation.Network(latency_seconds=1e-3, bandwidth_gbps=1.0)
    history = simulation.simulate(
        build, (x, y), "async", num_workers=4, compute=compute, network=network
    )
    print(history.summary(), history.final("loss") + 1.0)
    measured = simulation.measure(build(), x, y, batch_size=8)
    print(simulation.advise(measured, num_workers=[2, 4]).table())
    return simulation.compare(
        lambda rate, momentum: build, (x, y), ["sync", "async"], [2, 4]
    )


def register_method() -> None:
    """Names a method."""
    entry = tfdist.register(
        "my_sync",
        synchronization.Sync,
        defaults={"backup_workers": 2},
        help="synchronous",
    )
    print(entry.settings, entry.paper)


def embed() -> keras.Model:
    """Looks up ids that are not known in advance, one by one and in bags."""
    table = tfdist.layers.DynamicEmbedding(8, capacity=1000, mask_zero=True)
    bag = tfdist.layers.EmbeddingBag(table, "sqrtn")
    ids = keras.Input([None], dtype="string")
    print([server["used"] + 1 for server in table.counts()])
    return keras.Model(ids, bag(ids))


def evaluate(model: keras.Model) -> dict[str, float]:
    """Evaluates beside training."""
    return tfdist.SidecarEvaluator(
        model, np.zeros([8, 4]), interval_seconds=1.0
    ).start()
