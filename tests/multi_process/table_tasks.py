"""What the tasks of clusters do whose model has a table on the servers."""

import itertools

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import failure_tasks
from tests.multi_process import handshake
from tests.multi_process import killed_server_tasks
from tests.multi_process import tasks
import tfdist
from tfdist.runtime.checkpoint import table_chunks
from tfdist.runtime.checkpoint import table_export
from tfdist.runtime.variables import table as table_lib

ROWS, WIDTH = 3000, 2
BATCH = 7
RATES = {
    "sgd": 0.1,
    "momentum": 0.1,
    "adagrad": 0.1,
    "rmsprop": 0.01,
    "adam": 0.01,
    "dynamic adam": 0.01,
}


def ids_of(worker, steps):
    """The ids of a worker's batches, `(steps, BATCH)`."""
    random = np.random.default_rng(worker)
    # Some come often, and most never.
    return (random.zipf(1.3, (steps, BATCH)) * 37 % ROWS).astype("int64")


def _data(ids):
    targets = np.zeros((len(ids), 1), np.float32)
    data = tf.data.Dataset.from_tensor_slices((ids, targets))
    return tasks.unshared(data.repeat().batch(1))


def _strategy(server_timeout=60.0):
    return tfdist.AsyncStrategy(
        table_bytes=1,
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=60.0, server_timeout=server_timeout
        ),
    )


def _table(dynamic, first):
    """A layer whose rows begin with a number."""
    if dynamic:
        return tfdist.layers.DynamicEmbedding(WIDTH, ROWS, initializer=first)
    return keras.layers.Embedding(
        ROWS, WIDTH, embeddings_initializer=keras.initializers.Constant(first)
    )


def _sum_of_rows(strategy, first=0, batch=BATCH, dynamic=False):
    """A model whose gradient is one for each row of its batch."""
    with strategy.scope():
        table = _table(dynamic, first)
        model = keras.Sequential(
            [
                keras.Input((batch,), dtype="int64"),
                table,
                keras.layers.Lambda(
                    lambda x: keras.ops.sum(x, (1, 2))[:, None]
                ),
            ]
        )
        model.compile(keras.optimizers.SGD(1.0), tasks.first_output)
    return model, table


def _rows(table):
    return np.asarray(table(np.arange(ROWS))).tolist()


def push_rows(steps, dynamic=False):
    """Pushes a gradient of one for each id; reports all rows.

    Args:
        steps: how many.
        dynamic: whether ids get their rows in training.
    """
    strategy = _strategy()
    model, table = _sum_of_rows(strategy, dynamic=dynamic)
    ids = ids_of(strategy.cluster.worker_id, steps)
    model.fit(
        _data(ids),
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[tasks.WaitAfterFirstStep()],
    )
    strategy.barrier()
    # Other workers write nothing.
    strategy.export_tables("exported")
    handshake.report(
        name=table.embeddings.path,
        rows=_rows(table),
        updates=strategy.updates_applied(),
        bytes_per_server=strategy.bytes_per_server,
        counts=table.counts() if dynamic else None,
    )


# Each once, all over the table; no other row ever has a gradient.
SAME_IDS = np.arange(0, ROWS, 3)


def push_same_rows_until_told(dynamic=False):
    """Pushes a gradient of one for each of `SAME_IDS` in every step.

    Args:
        dynamic: whether ids get their rows in training.
    """
    strategy = _strategy()
    model, table = _sum_of_rows(strategy, 0, len(SAME_IDS), dynamic)
    model.fit(
        _data(SAME_IDS[None]),
        steps_per_epoch=10**6,
        verbose=0,
        callbacks=[failure_tasks.TellProgress("stop")],
    )
    strategy.barrier()
    handshake.report(
        rows=_rows(table),
        updates=strategy.updates_applied(),
        counts=strategy.push_counts(),
        lost_by_rows=[event.lost_by_rows for event in strategy.recoveries],
    )


GRADIENT = 6.0


def push_in_rounds_until_told(dynamic=False):
    """Pushes a gradient of `GRADIENT` for rows and a kernel, synchronously.

    Args:
        dynamic: whether ids get their rows in training.
    """
    strategy = tfdist.ParameterServerStrategy(
        synchronization=tfdist.synchronization.Sync(),
        table_bytes=1,
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=60.0, server_timeout=60.0, worker_timeout=15.0
        ),
    )
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    with strategy.scope():
        table = _table(dynamic, 0)
        ids = keras.Input((len(SAME_IDS),), dtype="int64")
        rows = keras.layers.Lambda(
            lambda x: GRADIENT * keras.ops.sum(x, (1, 2))[:, None]
        )(table(ids))
        six = keras.layers.Lambda(
            lambda x: GRADIENT + keras.ops.cast(0 * x[:, :1], "float32")
        )(ids)
        model = keras.Model(ids, rows + dense(six))
        model.compile(keras.optimizers.SGD(1.0), tasks.first_output)
    model.fit(
        _data(SAME_IDS[None]),
        steps_per_epoch=10**6,
        verbose=0,
        callbacks=[failure_tasks.TellProgress("stop")],
    )
    strategy.barrier()
    exchanges = strategy.journal.read_new()
    handshake.report(
        dynamic=dynamic,
        rows=_rows(table),
        kernel=float(dense.kernel.numpy()[0, 0]),
        updates=strategy.updates_applied(),
        iterations=int(model.optimizer.iterations.numpy()),
        counts=strategy.gradient_counts(),
        staleness=[e.staleness for e in exchanges if e.accepted],
        lost_by_rows=[event.lost_by_rows for event in strategy.recoveries],
    )


def _halt_in(owner, method):
    """Makes a reader of rows wait in its third call after `halt` was told.

    Args:
        owner: a class.
        method: name of what reads some rows.
    """
    read, calls = getattr(owner, method), itertools.count(1)

    def read_or_halt(*args):
        if handshake.told("halt") and next(calls) == 3:
            print("halted", flush=True)
            handshake.wait_for("go on")
        return read(*args)

    setattr(owner, method, read_or_halt)


def save_when_told(server_timeout):
    """Trains until told to stop; the chief exports and saves when told.

    Args:
        server_timeout: of the strategy, seconds.
    """
    table_export.PIECE_BYTES = 4096
    _halt_in(table_lib.TableVariable, "read_rows")
    _halt_in(table_chunks.TableChunks, "_read")
    strategy = _strategy(server_timeout)
    model, _ = _sum_of_rows(strategy, 0, len(SAME_IDS))
    checkpoint = tfdist.callbacks.ClusterCheckpoint(
        "checkpoints", save_freq=10**6
    )
    callbacks = [checkpoint, failure_tasks.TellProgress("stop")]
    if strategy.cluster.is_chief:
        actions = {
            "export": lambda: strategy.export_tables("exported"),
            "save": checkpoint._save,
        }
        callbacks += [
            killed_server_tasks.WhenTold(*action) for action in actions.items()
        ]
    try:
        model.fit(
            _data(SAME_IDS[None]),
            steps_per_epoch=10**6,
            verbose=0,
            callbacks=callbacks,
        )
    except Exception as error:
        handshake.report(error=type(error).__name__, message=str(error))
        raise
    strategy.barrier()
    handshake.report(updates=strategy.updates_applied())


def cycle_of_ids(worker):
    """The ids that a worker pushes again and again, `(50, BATCH)`."""
    return np.random.default_rng(worker).integers(0, 200, (50, BATCH))


def push_rows_until_told(dynamic=False):
    """The same until it is told to stop, from a table of ones.

    Args:
        dynamic: whether ids get their rows in training.
    """
    strategy = _strategy()
    model, table = _sum_of_rows(strategy, 1, dynamic=dynamic)
    model.fit(
        _data(cycle_of_ids(strategy.cluster.worker_id)),
        steps_per_epoch=10**6,
        verbose=0,
        callbacks=[failure_tasks.TellProgress("stop")],
    )
    strategy.barrier()
    handshake.report(rows=_rows(table), updates=strategy.updates_applied())


def _regression(strategy, optimizer):
    """A model with a table, and the table.

    Args:
        strategy: its strategy.
        optimizer: a key of `RATES`.
    """
    keras.utils.set_random_seed(3)
    with strategy.scope():
        if optimizer.startswith("dynamic "):
            table = tfdist.layers.DynamicEmbedding(WIDTH, ROWS)
        else:
            table = keras.layers.Embedding(ROWS, WIDTH)
        model = keras.Sequential(
            [
                keras.Input((BATCH,), dtype="int64"),
                table,
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        if optimizer == "momentum":
            made = keras.optimizers.SGD(momentum=0.9)
        else:
            made = keras.optimizers.get(optimizer.removeprefix("dynamic "))
        made.learning_rate = RATES[optimizer]
        model.compile(made, "mse")
    return model, table


def _fit(model, epochs, callbacks=()):
    """Returns the history of one worker's training."""
    ids = ids_of(0, 64)
    targets = np.random.default_rng(1).normal(size=(64, 1)).astype("float32")
    return model.fit(
        ids,
        targets,
        batch_size=8,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )


def trajectories():
    """Trains one worker by each of `RATES`; reports losses and rows."""
    strategy = _strategy()
    found = {}
    for optimizer in RATES:
        model, table = _regression(strategy, optimizer)
        first = _rows(table)
        history = _fit(model, epochs=2)
        found[optimizer] = {
            "first": first,
            "losses": history.history["loss"],
            "rows": _rows(table),
        }
    handshake.report(**found)


def _rows_and_slots(model):
    """All rows of all tables, by the end of their names."""
    variables = [*model.variables, *model.optimizer.variables]
    tables = [
        v.value for v in variables if len(v.shape) == 2 and v.shape[0] >= ROWS
    ]
    tables += getattr(tables[0], "columns", {}).values()
    return {
        table.path.rsplit("/", 1)[-1]: table.read_rows(
            0, table.shape[0]
        ).tolist()
        for table in tables
    }


def resume(directory, epochs, optimizer):
    """Trains one worker from its newest checkpoint on; reports all rows.

    Args:
        directory: of the checkpoints.
        optimizer: a key of `RATES`.
        epochs: how many are to have been trained in the end.
    """
    strategy = _strategy()
    model, _ = _regression(strategy, optimizer)
    checkpoint = tfdist.callbacks.ClusterCheckpoint(directory)
    found = []

    class Look(keras.callbacks.Callback):
        """Looks at what was restored before anything is trained."""

        def on_epoch_begin(self, epoch, logs=None):
            """Reads all rows, once."""
            del epoch, logs
            if not found:
                found.append(_rows_and_slots(model))

    _fit(model, epochs, [checkpoint, Look()])
    handshake.report(
        resumed=checkpoint.resumed_epoch,
        restored=found and found[0],
        trained=_rows_and_slots(model),
        updates=strategy.updates_applied(),
    )
