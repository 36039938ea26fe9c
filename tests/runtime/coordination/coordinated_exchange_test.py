"""Exchanges that a ledger decides over, in one process.

Several virtual workers (see `delay_test`) take steps in a given order, so that
the delay of each gradient is known. What waits for others is tested with real
processes in `tests.multi_process`.
"""

import functools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.runtime.exchange import delay_test
from tests.runtime.exchange.delay_test import RULES
from tests.runtime.exchange.delay_test import VirtualWorker
from tests.strategies import optimizer_cases
from tests.strategies import train_steps_test
from tests.strategies import twins
import tfdist
from tfdist.cluster import snapshots
from tfdist.runtime.coordination import coordination
from tfdist.runtime.corrections import corrector
from tfdist.runtime.exchange import step as step_lib
from tfdist.synchronization import Async
from tfdist.synchronization import BoundedStaleness
from tfdist.synchronization import SoftSync
from tfdist.synchronization import Sync
from tfdist.synchronization import state as state_lib


def _corrector(made, **settings):
    return corrector.Corrector(made.store, made.state, **settings)


def make_workers(
    run,
    number,
    method,
    correction=None,
    rule="sgd",
    layers=(),
    partitioner=None,
    loss="mse",
):
    """Virtual workers, all with the same initial parameters."""
    workers = []
    for k in range(number):
        parts = {}
        if correction is not None:
            parts["corrector"] = functools.partial(
                _corrector,
                correction=correction.resolve(method or Async(), number),
                num_workers=number,
                worker_id=k,
            )
        if method is not None:
            parts["coordination"] = functools.partial(
                coordination.Coordination,
                method=method.resolve(number),
                correction=correction,
                worker_names=[f"worker {j}" for j in range(number)],
                worker_id=k,
                worker_timeout=10.0,
                start_timeout=10.0,
                members_table=None,
            )
        worker = VirtualWorker(run, k, partitioner, **parts)
        make = RULES[rule][0] if isinstance(rule, str) else rule
        workers.append(worker.build(make, layers, loss))
    for worker in workers:
        worker.runtime.pull()
        if method is not None:
            counter = step_lib.step_counter(worker.model.optimizer)
            worker.runtime.coordination.prepare(counter)
    return workers


def number_staged(worker):
    """Gradients that lie on the server."""
    ledger = worker.runtime.coordination.ledgers[0]
    types = ledger._renewal._staged[0]
    name = ledger.name_of("gradients")
    size = tf.function(
        lambda: tf.raw_ops.MapSize(dtypes=types, shared_name=name)
    )
    return int(size())


@pytest.mark.nightly
def test_gradients_of_several_optimizers_are_known_after_a_loss():
    """The first server has lost all ledgers; it has no snapshot."""
    (worker,) = make_workers("several", 1, BoundedStaleness(3))
    data = iter(delay_test.batches(5, seed=2))
    for _ in range(2):
        worker.step(*next(data))
    worker.build(RULES["sgd"][0])
    for _ in range(3):
        worker.step(*next(data))
    made = worker.runtime.coordination
    assert len(made.ledgers) == 2
    before = made.own_applied()
    counts = made.counts()["worker 0"]
    assert (before, counts["accepted"]) == (([5], [0]), 5)

    @tf.function(autograph=False)
    def lose():
        size = state_lib.size(1)
        for ledger in made.ledgers:
            tf.raw_ops.AssignVariableOp(
                resource=ledger.state_handle(), value=tf.zeros([size], tf.int64)
            )

    # More often than once.
    for life in (1, 2):
        lose()
        made.renew([life], [True])
        assert made.own_applied() == before
        found = made.counts()["worker 0"]
        assert (found["pushed"], found["accepted"]) == (5, 5)


@pytest.mark.nightly
def test_a_gradient_of_an_epoch_that_has_ended_is_void():
    """Servers were lost, and one worker knows while the other does not."""
    first, second = make_workers("epochs", 2, Async(), rule="momentum")
    data = iter(delay_test.batches(5, seed=2))
    for worker in (first, second):
        worker.step(*next(data))
    ledgers = [w.runtime.coordination.ledgers[0] for w in (first, second)]
    # The only server is in another life.
    assert ledgers[0].renew([1]).began
    first.runtime.pull()
    before = first.weights()

    second.model.train_on_batch(*next(data))
    (exchange,) = second.runtime.journal.read_new()
    assert not exchange.accepted
    assert second.runtime.journal.drops == 1
    assert number_staged(second) == 0
    np.testing.assert_array_equal(second.weights(), before)
    assert first.runtime.updates_applied() == [2]

    assert not ledgers[1].renew([1]).began
    for number, worker in enumerate((second, first), start=3):
        worker.model.train_on_batch(*next(data))
        (exchange,) = worker.runtime.journal.read_new()
        assert exchange.accepted
        assert exchange.version == number
    assert (first.weights() != before).all()
    assert second.runtime.journal.drops == 1
    counts = first.runtime.coordination.counts()
    assert [c["accepted"] for c in counts.values()] == [2, 2]


@pytest.mark.nightly
def test_dropped_gradient_leaves_no_trace():
    """Neither in the parameters, nor in the statistics of batches."""
    layers = [lambda: keras.layers.BatchNormalization(momentum=0.9)]
    first, late = make_workers("dropped", 2, Sync(1), layers=layers)
    (x, y), (late_x, late_y) = delay_test.batches(2, seed=3)
    first.step(x, y)
    expected = first.model.get_weights()
    late.model.train_on_batch(late_x + 5.0, late_y)
    (exchange,) = late.runtime.journal.read_new()
    assert not exchange.accepted
    # It has the new parameters, and all that belongs to them.
    for found, wanted in zip(late.model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert late.runtime.updates_applied() == [1]
    counts = late.runtime.coordination.counts()
    assert counts["worker 0"] == {
        "pushed": 1,
        "accepted": 1,
        "dropped": 0,
        "nonfinite": 0,
        "staleness": 0,
    }
    assert counts["worker 1"] == {
        "pushed": 1,
        "accepted": 0,
        "dropped": 1,
        "nonfinite": 0,
        "staleness": 0,
    }
    # The next one is based on them.
    late.model.train_on_batch(late_x, late_y)
    (exchange,) = late.runtime.journal.read_new()
    assert exchange.accepted
    assert late.model.optimizer.iterations.numpy() == 2


def test_an_update_has_the_rate_of_the_lowest_worker_from_a_function():
    """Where the function returns a variable that the program has made."""
    rates = iter([1.0, 0.25])

    def make_optimizer():
        rate = tf.Variable(next(rates), trainable=False)
        return keras.optimizers.SGD(lambda: rate)

    workers = make_workers("function", 2, SoftSync(s=2), rule=make_optimizer)
    before = workers[0].weights()
    (x, y), *_ = delay_test.batches(1, seed=3)
    # The second one carries out the update with both gradients.
    for worker in workers:
        worker.step(x, y)
    right = before - 1.0 * delay_test.gradient(before, x, y)
    np.testing.assert_allclose(workers[1].weights(), right, rtol=1e-5)


BESIDE = {
    "constraint": lambda: twins.perceptron(kernel_constraint="non_neg"),
    "average": lambda: keras.optimizers.SGD(use_ema=True),
    "count of several": optimizer_cases.CASES["MultiOptimizer"],
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["constraint", "average", "count of several"])
def test_what_each_worker_would_do_to_an_average_is_refused(name):
    strategy = tfdist.BackupWorkersStrategy(0)
    with strategy.scope():
        if name == "constraint":
            model = twins.compiled(BESIDE[name]())
        else:
            model = twins.compiled(twins.perceptron(), BESIDE[name]())
    x, y = twins.classification()
    with pytest.raises(
        ValueError, match="assigned beside the optimizer's upda"
    ):
        model.fit(x, y, verbose=0)


@pytest.mark.nightly
@pytest.mark.parametrize("eagerly", [True, False])
def test_a_step_that_sends_nothing_is_not_taken_again(eagerly):
    """The one before it came too late, and ended with an exception."""
    strategy, calls = tfdist.BackupWorkersStrategy(0, on_drop="retry"), []
    strategy._runtime.journal._dropped.assign(True)

    def look():
        calls.append(None)
        if len(calls) > 1:
            raise RuntimeError("again")
        return 1

    def run():
        return strategy.run(lambda: tf.py_function(look, [], tf.int32))

    assert int(run() if eagerly else tf.function(run)()) == 1


@pytest.mark.nightly
def test_retry_refuses_eager_steps_of_several_optimizers():
    with tfdist.BackupWorkersStrategy(0, on_drop="retry").scope():
        model = train_steps_test.Adversarial()
        model.compile(keras.optimizers.SGD(), keras.optimizers.Adam())
    model.run_eagerly = True
    with pytest.raises(ValueError, match="several optimizer steps"):
        model.fit(train_steps_test.X, batch_size=6, verbose=0)


def test_retry_refuses_eager_steps_that_accumulate_before_any_pushes():
    strategy = tfdist.BackupWorkersStrategy(0, on_drop="retry")
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2)
        model.compile(optimizer, "mse", run_eagerly=True)
    x = np.ones((1, 1))
    with pytest.raises(ValueError, match="accumulates gradients"):
        model.train_on_batch(x, x)


class CountsCalls(keras.layers.Layer):
    """Counts its calls in an integer, which is each worker's own."""

    def build(self, shape):
        self.calls = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False
        )

    def call(self, x):
        self.calls.assign_add(1)
        return x


class CountsExamples(keras.metrics.Sum):
    """Counts the examples that it has been shown."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        del y_pred, sample_weight
        return super().update_state(keras.ops.ones_like(y_true))


@pytest.mark.nightly
@pytest.mark.parametrize("eagerly", [True, False])
def test_a_step_that_is_taken_again_finds_what_is_its_own(monkeypatch, eagerly):
    # A script for four workers runs in one process as well.
    strategy = tfdist.BackupWorkersStrategy(3, on_drop="retry")
    with strategy.scope():
        layer = CountsCalls()
        model = keras.Sequential([keras.Input([2]), layer])
        model.add(keras.layers.Dense(1))
        seen = CountsExamples("seen")
        model.compile("sgd", "mse", metrics=[seen], run_eagerly=eagerly)
    calls = tf.Variable(0)
    # Of each two steps the first is "dropped".
    monkeypatch.setattr(
        strategy._runtime.journal,
        "was_dropped",
        lambda: tf.equal(calls.assign_add(1) % 2, 1),
    )
    x, y = np.ones([8, 2]), np.ones([8, 1])
    for fit in (1, 2):
        logs = model.fit(x, y, batch_size=2, verbose=0).history
        assert int(calls) == 8 * fit
        assert int(layer.calls) == 4 * fit
        assert logs["seen"] == [8.0]


@pytest.mark.nightly
def test_a_gradient_of_an_epoch_that_has_ended_is_not_computed_again():
    (worker,) = make_workers("ended", 1, Sync(on_drop="retry"))
    first, second, third = delay_test.batches(3, seed=2)
    worker.step(*first)
    (ledger,) = worker.runtime.coordination.ledgers
    ledger.set_epoch(-1)
    # Else the step would never end.
    end = threading.Timer(3.0, ledger.set_epoch, [0])
    end.start()
    worker.step(*second)
    end.cancel()
    journal = worker.runtime.journal
    assert (journal.begun, journal.drops) == (2, 1)
    ledger.set_epoch(0)
    worker.step(*third)
    assert (journal.begun, journal.drops) == (3, 1)


class Anneals(keras.Model):
    """Two values made of the count, before and after a step, and of itself."""

    def __init__(self):
        super().__init__()
        self.w = self.add_weight(shape=(), initializer="zeros")
        self.before, self.after, self.sum = (
            self.add_weight(shape=(), initializer="zeros", trainable=False)
            for _ in range(3)
        )

    def call(self, x):
        return x * self.w

    def train_step(self, data):
        count = self.optimizer.iterations
        self.before.assign(10.0 * tf.cast(count, tf.float32))
        self.sum.assign(self.sum + 1.0 + tf.cast(count, tf.float32))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(data))
        gradients = tape.gradient(loss, [self.w])
        self.optimizer.apply(gradients, [self.w])
        self.after.assign(10.0 * tf.cast(count, tf.float32))
        return {"loss": loss}


@pytest.mark.parametrize(
    "method",
    nightly.also([Sync()], [BoundedStaleness(1)]),
    ids=repr,
)
def test_what_a_step_makes_of_its_count_is_of_the_count_then(method):
    """Servers have counted its update before they do what else it does."""
    strategy = tfdist.ParameterServerStrategy(synchronization=method)
    with strategy.scope():
        model = Anneals()
        model.compile(keras.optimizers.SGD(0.1))
    model.fit(np.ones((3, 1), "float32"), batch_size=1, verbose=0)
    made = [float(v) for v in (model.before, model.sum, model.after)]
    assert made == [20.0, 6.0, 30.0]


def test_what_one_fit_leaves_is_no_part_of_the_next():
    """In one process, where no heartbeat tells that the first has ended."""
    with tfdist.SoftSyncStrategy(s=2).scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile(keras.optimizers.SGD(1.0), "mse")
    x = np.ones((3, 1), "float32")
    model.fit(x, 5 * x, batch_size=1, verbose=0)
    model.set_weights([np.zeros((1, 1))])
    model.fit(x[:1], x[:1], batch_size=1, verbose=0)
    model.distribute_strategy.pull()
    assert layer.kernel.numpy() == [[0.0]]
    # Gradients of zeros, -2, fill the update together: one more comes.
    model.train_on_batch(x[:1], x[:1])
    assert layer.kernel.numpy() == [[2.0]]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("dtype", "gradient", "number"),
    [("float16", 4e4, 2), ("bfloat16", 1, 300)],
)
def test_sums_of_half_precision_neither_overflow_nor_stop(
    dtype, gradient, number
):
    """A mean of equal gradients is one of them."""
    with tfdist.SoftSyncStrategy(s=number).scope():
        model = keras.Sequential(
            [
                keras.Input((1,)),
                keras.layers.Dense(
                    1, use_bias=False, kernel_initializer="zeros", dtype=dtype
                ),
            ]
        )
        model.compile(keras.optimizers.SGD(1.0), lambda y, p: -p)
    x = np.full((number, 1), gradient, "float32")
    model.fit(x, x, batch_size=1, verbose=0)
    assert float(model.layers[0].kernel[0, 0]) == gradient


@pytest.mark.nightly
def test_snapshots_leave_out_all_that_is_by_worker():
    """After 2, 3 and again 2 workers it would be older than all else."""

    def known(number):
        run = f"names of {number}"
        runtime = make_workers(run, number, BoundedStaleness(1))[0].runtime
        runtime.coordination.counts()
        store = runtime.store
        return {store.short_name(name) for _, name in store.known}

    differ = known(2) ^ known(3)
    assert differ
    assert [n for n in differ if not snapshots._BY_WORKER.search(n)] == []
