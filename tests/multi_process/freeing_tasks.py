"""Workers that train, and delete, one model after the other."""

import gc

import keras
import tensorflow as tf

from tests.multi_process import failure_tasks
from tests.multi_process import handshake
from tests.multi_process import recovery_tasks
from tests.multi_process import tasks
import tfdist
from tfdist.cluster import member_table


def one_after_the_other(strategies, models):
    """Deletes models; reports what is left of them under each strategy.

    Args:
        strategies: names of `recovery_tasks.STRATEGIES`.
        models: how many of each.
    """
    reports = {}
    for name in strategies:
        strategy = recovery_tasks.STRATEGIES[name](
            fault_tolerance=tasks.PATIENT
        )
        named, pushed = {}, []
        for _ in range(models):
            train_one(strategy)
            # It is gone; what servers hold of it may not be yet.
            named.update(strategy._runtime.store.known)
            pushed.append(strategy.push_counts()["pushed"])
        meet(f"{name} is trained")
        for round_ in range(3):
            # An outer optimizer is garbage when the inner one is gone; and
            # whoever lets go last frees what the others know by name.
            gc.collect()
            strategy.commit()
            meet(f"{name} is tidy {round_}")
        reports[name] = {
            "named": len(named),
            "left": left(strategy, named),
            "known": [
                n for _, n in strategy._runtime.store.known if is_of_model(n)
            ],
            "variables": len(list(strategy._runtime.store.variables)),
            "functions": sum(
                len(traced._functions)
                for traced in strategy._runtime.store.traced
            ),
            "pushed": pushed,
            "counts": strategy.gradient_counts(),
            "own": strategy.push_counts(),
        }
    handshake.report(**reports)


def train_one(strategy):
    """Trains a model with slots and statistics for 9 steps; deletes it."""
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(16, activation="silu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.001), "mse")
    x, y = recovery_tasks.regression()
    model.fit(x[:288], y[:288], batch_size=16, verbose=0)
    strategy.barrier()
    del model
    keras.backend.clear_session()
    gc.collect()


def meet(name):
    """Waits until all workers are here."""
    print(name, flush=True)
    handshake.wait_for(name)


def is_of_model(name):
    """Whether a resource belongs to a model, by its name."""
    kinds = ("variable", "signature", "rows", "given", "mark", "ledger")
    return name.split("/")[3] in (*kinds, "local")


def left(strategy, named):
    """Those of the resources named that servers hold, of models."""
    runtime = strategy._runtime
    names = [key for key in named if is_of_model(key[1])]

    @tf.function(autograph=False)
    def held():
        found = []
        for shard, name in names:
            with tf.device(runtime.store.devices[shard]):
                handle = tf.raw_ops.VarHandleOp(
                    dtype=named[shard, name], shape=None, shared_name=name
                )
                there = tf.raw_ops.VarIsInitializedOp(resource=handle)
            with tf.device(runtime.store.worker_device):
                found.append(tf.identity(there))
        return tf.stack(found)

    return [n for n, there in zip(names, held().numpy(), strict=True) if there]


def sums(until, lost_after=member_table.LOST_AFTER_SECONDS, first=8):
    """Trains two models of known sums, deletes the first.

    Args:
        until: what the test tells to end the second.
        lost_after: seconds after which a silent worker is not waited for.
        first: steps of the first.
    """
    member_table.LOST_AFTER_SECONDS = lost_after
    strategy = tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=60.0, server_timeout=60.0
        )
    )
    model = tasks.build_sum_of_weights(strategy)
    caught = None
    try:
        model.fit(tasks.own_data(2.0), steps_per_epoch=first, verbose=0)
        print("first model is trained", flush=True)
        strategy.barrier()
    except tfdist.ModelFreedError as error:
        caught = str(error)
        print("first model is over", flush=True)
    del model
    keras.backend.clear_session()
    gc.collect()
    before = strategy.updates_applied()
    model = tasks.build_sum_of_weights(strategy)
    strategy.commit()
    meet("second model")
    strategy.commit()
    model.fit(
        tasks.own_data(1.0),
        steps_per_epoch=1000000,
        verbose=0,
        callbacks=[failure_tasks.TellProgress(until)],
    )
    strategy.barrier()
    runtime = strategy._runtime
    handshake.report(
        caught=caught,
        before=before,
        left=left(
            strategy,
            {
                (
                    shard,
                    runtime.store.name_of(f"variable/{ordinal}"),
                ): tf.float32
                for shard in range(runtime.store.num_shards)
                for ordinal in range(6)
            },
        ),
        gone=[
            k
            for k in range(len(runtime.store.variables))
            if k not in live(runtime)
        ],
        **failure_tasks.outcome(strategy, model),
    )


def live(runtime):
    """Positions of the variables that are there."""
    return dict(runtime.store.variables.items())
