"""Tables beside synchronous updates of all else, against NumPy.

Two virtual workers (see `delay_test`) train in threads, so that they wait for
each other and nothing else holds them. All gradients are constant: of a row
how often its id is in the batch, of the kernel the batch's x. So the loss of a
step tells how many updates of rows its look-up has seen.
"""

from concurrent import futures
import functools
import itertools

import keras
import numpy as np
import pytest

from tests import nightly
from tests.runtime.exchange.delay_test import VirtualWorker
from tfdist.runtime.coordination import coordination
from tfdist.runtime.coordination import own_rows
from tfdist.runtime.exchange import step as step_lib
from tfdist.runtime.variables import table
from tfdist.synchronization import Sync

ROWS, WIDTH, WORKERS, STEPS = 1100, 2, 2, 12
# Of both workers, of one (twice in a batch), and of nobody.
SHARED, NOBODYS = 3, 5
IDS = np.array([[SHARED, 7, 7], [SHARED, 1040, 1040]])
X = np.array([[1.0, -2.0], [4.0, 0.5]], np.float32)
FIRST = 8.0
# Of Adam, and the number of its first steps.
RATE, HALVED_AFTER = 0.25, 4
_runs = itertools.count()


def make_workers(make_optimizer):
    """Virtual workers with one table and a kernel."""
    run = f"own rows {next(_runs)}"
    workers = []
    for k in range(WORKERS):
        part = functools.partial(
            coordination.Coordination,
            method=Sync(),
            correction=None,
            worker_names=[f"worker {j}" for j in range(WORKERS)],
            worker_id=k,
            worker_timeout=60.0,
            start_timeout=60.0,
            members_table=None,
        )
        tables = table.TableSettings(from_bytes=4 * ROWS * WIDTH)
        worker = VirtualWorker(run, k, tables=tables, coordination=part)
        with worker.scope():
            ids = keras.Input((IDS.shape[1],), dtype="int32")
            x = keras.Input((X.shape[1],))
            first = keras.initializers.Constant(FIRST)
            worker.table = keras.layers.Embedding(
                ROWS, WIDTH, embeddings_initializer=first
            )
            rows = keras.layers.Flatten()(worker.table(ids))
            total = keras.layers.Lambda(
                lambda r: keras.ops.sum(r, 1, keepdims=True)
            )(rows)
            dense = keras.layers.Dense(
                1, use_bias=False, kernel_initializer="ones"
            )
            worker.model = keras.Model([ids, x], total + dense(x))
            worker.model.compile(make_optimizer(), lambda _, y: y[:, 0])
            worker.model.optimizer.build(worker.model.trainable_variables)
        worker.kernel = dense.kernel
        workers.append(worker)
    for worker in workers:
        worker.runtime.pull()
        worker.runtime.coordination.prepare(
            step_lib.step_counter(worker.model.optimizer)
        )
    return workers


def train(workers):
    """Takes all steps at once.

    Returns:
        By worker and step, the losses, and the kernels before them and after
        the last.
    """

    def steps(k):
        losses, kernels = [], [workers[k].kernel.numpy()[:, 0]]
        for _ in range(STEPS):
            batch = [IDS[k : k + 1].astype("int32"), X[k : k + 1]]
            losses.append(
                workers[k].model.train_on_batch(batch, np.zeros((1, 1)))
            )
            kernels.append(workers[k].kernel.numpy()[:, 0])
        return losses, kernels

    with futures.ThreadPoolExecutor(WORKERS) as pool:
        running = [pool.submit(steps, k) for k in range(WORKERS)]
        found = [each.result(timeout=120.0) for each in running]
    losses, kernels = zip(*found, strict=True)
    return np.array(losses, "float64"), np.array(kernels, "float64")


def rows_of(worker):
    return np.asarray(worker.table(np.arange(ROWS)), "float64")


def times():
    """How often each id is in each worker's batch, `(WORKERS, ROWS)`."""
    return np.stack([np.bincount(ids, minlength=ROWS) for ids in IDS])


@pytest.mark.nightly
def test_rows_and_kernel_are_those_of_synchronous_sgd():
    workers = make_workers(lambda: keras.optimizers.SGD(1.0))
    losses, kernels = train(workers)
    # w <- w - the mean of all gradients, to the bit, on each worker.
    done = np.arange(STEPS + 1)[:, None]
    for found in kernels:
        np.testing.assert_array_equal(found, found[0] - done * X.mean(0))
    expected = FIRST - STEPS * times().mean(0)
    for worker in workers:
        np.testing.assert_array_equal(
            rows_of(worker), np.repeat(expected[:, None], WIDTH, 1)
        )
        counts = worker.runtime.coordination.counts().values()
        assert [c["accepted"] for c in counts] == [STEPS] * WORKERS
        assert worker.runtime.updates_applied() == [STEPS]
    for k, worker in enumerate(workers):
        # What a look-up has not seen of the shared row is missing in the loss.
        own = times()[k] @ times().mean(0)
        all_seen = [
            times()[k].sum() * FIRST * WIDTH - WIDTH * own * step
            for step in range(STEPS)
        ]
        by_kernel = kernels[k][:-1] @ X[k]
        missing = (losses[k] - by_kernel - all_seen) * WORKERS / WIDTH
        assert set(missing) <= {-1.0, 0.0, 1.0}
        assert missing[0] <= 0
        found = worker.runtime.journal.read_new()
        assert all(exchange.accepted for exchange in found)
        assert max(e.staleness for e in found) <= 2 * (WORKERS - 1)


def test_rows_are_divided_by_the_size_of_their_own_update():
    """The ring has been written on since: entry k lies at k % 6."""
    # From entry 4 on: an update of two gradients, and one of one.
    entries = {4: (11, 0), 5: (12, 0), 6: (-1, 2), 7: (27, 0), 8: (-1, 1)}
    keys, counts = np.zeros([2, 6], "int64")
    for number, (key, count) in entries.items():
        keys[number % 6], counts[number % 6] = key, count
    log = [keys, None, None, counts, None]
    for key, size in {11: 2, 12: 2, 27: 1, 99: 0}.items():
        assert int(own_rows.size_of_update(key, log, np.int64(9))) == size


def adam(gradients):
    """Change by Adam in the form of its section 2 (Kingma and Ba 2015).

    Args:
        gradients: By step, a list of those that are applied in that step.
    """
    beta_1, beta_2, epsilon = 0.5, 0.75, 1e-7
    m = v = w = 0.0
    for t, some in enumerate(gradients, start=1):
        rate = RATE if t <= HALVED_AFTER else RATE / 2
        for g in some:
            m = beta_1 * m + (1 - beta_1) * g
            v = beta_2 * v + (1 - beta_2) * g**2
            alpha = rate * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
            w -= alpha * m / (np.sqrt(v) + epsilon)
    return w


@pytest.mark.nightly
def test_adam_takes_one_step_for_each_worker_that_has_the_row():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
        [HALVED_AFTER - 1], [RATE, RATE / 2]
    )
    workers = make_workers(
        lambda: keras.optimizers.Adam(schedule, beta_1=0.5, beta_2=0.75)
    )
    _, kernels = train(workers)
    changes = [adam([[g]] * STEPS) for g in X.mean(0)]
    rows = np.full(ROWS, FIRST)
    for row in np.flatnonzero(times().sum(0)):
        some = [n / WORKERS for n in times()[:, row] if n]
        rows[row] += adam([some] * STEPS)
    assert len(np.unique(rows)) == 3
    for worker, found in zip(workers, kernels, strict=True):
        np.testing.assert_allclose(found[-1] - found[0], changes, rtol=1e-5)
        np.testing.assert_allclose(
            rows_of(worker), np.repeat(rows[:, None], WIDTH, 1), rtol=1e-5
        )
        assert int(worker.model.optimizer.iterations.numpy()) == STEPS


@pytest.mark.parametrize("has_weight", nightly.also([False], [True]))
def test_who_pulls_has_the_newest_of_a_model_of_tables_alone(has_weight):
    run = f"tables alone {next(_runs)}"
    tables = table.TableSettings(from_bytes=4 * ROWS * WIDTH)
    workers = [VirtualWorker(run, k, tables=tables) for k in range(2)]
    for worker in workers:
        parts = [
            keras.Input((IDS.shape[1],), dtype="int32"),
            keras.layers.Embedding(ROWS, WIDTH),
            keras.layers.Flatten(),
        ]
        if has_weight:
            parts.append(keras.layers.Dense(1))
        with worker.scope():
            worker.model = keras.Sequential(parts)
            worker.model.compile("sgd", lambda _, y: y[:, 0])
            worker.model.optimizer.build(worker.model.trainable_variables)
        worker.runtime.pull()
    for _ in range(3):
        workers[0].model.train_on_batch(IDS, IDS)
    other = workers[1].runtime
    assert int(other.store.pulled_version(0)) == 0
    other.pull()
    assert int(other.store.pulled_version(0)) == 3
