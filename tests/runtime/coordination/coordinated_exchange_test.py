"""Exchanges that a ledger decides over, in one process.

Several virtual workers (see `delay_test`) take steps in a given order, so that
the delay of each gradient is known. What waits for others is tested with real
processes in `tests.multi_process`.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.runtime.exchange import delay_test
from tests.runtime.exchange.delay_test import LATE
from tests.runtime.exchange.delay_test import RULES
from tests.runtime.exchange.delay_test import VirtualWorker
from tests.runtime.variables import partitioning_test
from tests.strategies import keras_features_test
from tests.strategies import optimizer_cases
from tests.strategies import optimizers_test
from tests.strategies import train_steps_test
from tests.strategies import twins
import tfdist
from tfdist.correction import InverseStaleness
from tfdist.runtime.coordination import coordination
from tfdist.runtime.corrections import corrector
from tfdist.runtime.exchange import step as step_lib
from tfdist.strategies import presets
from tfdist.strategies import strategy as strategy_lib
from tfdist.synchronization import Async
from tfdist.synchronization import BoundedStaleness
from tfdist.synchronization import SoftSync
from tfdist.synchronization import Sync


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
        workers.append(worker.build(make, layers))
    for worker in workers:
        worker.runtime.pull()
        if method is not None:
            counter = step_lib.step_counter(worker.model.optimizer)
            worker.runtime.coordination.prepare(counter)
    return workers


def trajectory(run, method, rule):
    """What each worker sees after each step, and how late it was."""
    workers = make_workers(run, 3, method, rule=rule)
    seen = []
    data = delay_test.batches(len(LATE), seed=1)
    for k, (x, y) in zip(LATE, data, strict=True):
        staleness = workers[k].step(x, y)
        seen.append((staleness, *workers[k].weights()))
    return np.array(seen)


@functools.cache
def asynchronous(rule):
    """The `trajectory` where there is no ledger."""
    return trajectory(f"async {rule}", None, rule)


# With three workers, an n of 3 is an s of 1.
@pytest.mark.parametrize(
    ("method", "rule"),
    nightly.also(
        [(SoftSync(1), "momentum")],
        [(Async(), "adam_decay"), (SoftSync(n=3), "adam_decay")],
    ),
)
def test_softsync_of_one_gradient_is_async_to_the_bit(method, rule):
    run = f"softsync {rule} {method}"
    expected = asynchronous(rule)
    assert max(expected[:, 0]) > 3  # It is about late gradients.
    np.testing.assert_array_equal(trajectory(run, method, rule), expected)


def number_staged(worker):
    """Gradients that lie on the server."""
    ledger = worker.runtime.coordination.ledgers[0]
    types = ledger._renewal._staged[0]
    name = ledger.name_of("gradients")
    size = tf.function(
        lambda: tf.raw_ops.MapSize(dtypes=types, shared_name=name)
    )
    return int(size())


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
@pytest.mark.parametrize(
    ("s", "rule"), [(2, "momentum"), (1, "sgd"), (3, "adam")]
)
def test_rates_follow_the_staleness_of_each_gradient(s, rule):
    """Zhang et al. 2016, equation 3: alpha_0 / tau, in a mean of s."""
    workers = make_workers(
        f"late {rule} {s}", 3, SoftSync(s), InverseStaleness(0.5), rule
    )
    server = np.array([1.0] * delay_test.FEATURES + [0.0])
    copies, pulled, version = [server] * 3, [0] * 3, 0
    oracle, window = RULES[rule][1](), []
    data = delay_test.batches(len(LATE), seed=2)
    for k, (x, y) in zip(LATE, data, strict=True):
        staleness = workers[k].step(x, y)
        assert staleness == version - pulled[k]
        alpha = 0.5 / max(1, staleness)
        window.append(alpha * delay_test.gradient(copies[k], x, y))
        if len(window) == s:
            server = oracle.apply(server, sum(window) / s)
            window, version = [], version + 1
        copies[k], pulled[k] = server, version
        np.testing.assert_allclose(
            workers[k].weights(), server, rtol=2e-5, atol=2e-6
        )
    assert workers[0].runtime.updates_applied() == [len(LATE) // s]


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


@pytest.fixture
def method(request, monkeypatch):
    """Makes `tfdist.AsyncStrategy` one that uses the method."""

    class Coordinated(strategy_lib.ParameterServerStrategy):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, synchronization=request.param, **kwargs)

    monkeypatch.setattr(presets, "AsyncStrategy", Coordinated)
    assert tfdist.AsyncStrategy is Coordinated
    return request.param


# Others are rows of `tests.keras_programs`, on two workers.
FEATURES = {
    "batch normalization": (
        keras_features_test.test_batch_normalization_statistics
    ),
    "pieces": lambda: partitioning_test.test_pieces_train_as_the_whole(
        "adagrad"
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("method", [Sync()], indirect=True, ids=repr)
@pytest.mark.parametrize("feature", FEATURES)
def test_keras_features(method, feature):
    FEATURES[feature]()


@pytest.mark.parametrize(
    ("method", "name"),
    nightly.also(
        [(Sync(), "accumulation and all")],
        [
            # Other rules are rows of `tests.keras_programs`.
            (Sync(), "Adafactor"),
            (Sync(), "LossScaleOptimizer"),
            (Sync(), "ScheduleFreeAdamW"),
            (BoundedStaleness(0), "Nadam"),
            (BoundedStaleness(0), "loss scale overflows"),
            (BoundedStaleness(0), "accumulation and all"),
        ],
    ),
    indirect=["method"],
    ids=repr,
)
def test_optimizers(method, name):
    strategy = tfdist.AsyncStrategy()
    if method.averages and "all" in name:
        # It keeps an average, and has a constraint.
        with pytest.raises(
            ValueError, match="assigned beside the optimizer's updates"
        ):
            optimizer_cases.train(name, strategy.scope())
        return
    found = optimizer_cases.train(name, strategy.scope())
    optimizers_test.assert_same(found, optimizer_cases.plain(name))


@pytest.mark.parametrize(
    "build",
    [
        lambda: twins.compiled(twins.perceptron(kernel_constraint="non_neg")),
        lambda: twins.compiled(
            twins.perceptron(), keras.optimizers.SGD(use_ema=True)
        ),
        lambda: twins.compiled(
            twins.perceptron(), optimizer_cases.CASES["MultiOptimizer"]()
        ),
    ],
    ids=["constraint", "average", "count of several"],
)
def test_what_each_worker_would_do_to_an_average_is_refused(build):
    strategy = tfdist.BackupWorkersStrategy(0)
    with strategy.scope():
        model = build()
    x, y = twins.classification()
    with pytest.raises(
        ValueError, match="assigned beside the optimizer's upda"
    ):
        model.fit(x, y, verbose=0)


@pytest.mark.nightly
def test_retry_refuses_steps_of_several_optimizers(monkeypatch):
    monkeypatch.setattr(
        presets,
        "AsyncStrategy",
        lambda: tfdist.BackupWorkersStrategy(0, on_drop="retry"),
    )
    with pytest.raises(ValueError, match='use on_drop="next"'):
        train_steps_test.test_two_optimizers_in_one_step(("sgd", "adam"))


@pytest.mark.nightly
def test_retry_refuses_eager_steps_of_several_optimizers():
    with tfdist.BackupWorkersStrategy(0, on_drop="retry").scope():
        model = train_steps_test.Adversarial()
        model.compile(keras.optimizers.SGD(), keras.optimizers.Adam())
    model.run_eagerly = True
    with pytest.raises(ValueError, match="several optimizer steps"):
        model.fit(train_steps_test.X, batch_size=6, verbose=0)


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


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_step_that_is_taken_again_finds_what_is_its_own(monkeypatch, eagerly):
    strategy = tfdist.BackupWorkersStrategy(0, on_drop="retry")
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


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: tfdist.ParameterServerStrategy(synchronization="sync"),
            "`synchronization` must be one of tfdist.synchronization .*'sync'",
        ),
        (
            lambda: tfdist.ParameterServerStrategy(correction=0.5),
            "`correction` must be one of tfdist.correction .*0.5",
        ),
        (
            lambda: tfdist.BackupWorkersStrategy(
                1, fault_tolerance=tfdist.FaultTolerance(worker_timeout=2.0)
            ),
            "`worker_timeout` must be more than two heartbeats, .*=2.0",
        ),
        (
            lambda: tfdist.BackupWorkersStrategy(on_drop="again"),
            "`on_drop` of Sync must be 'next' or 'retry'. .*='again'",
        ),
        (
            lambda: tfdist.SoftSyncStrategy(2, n=1),
            "`s` .* and `n` .*Received: s=2, n=1",
        ),
        (
            lambda: tfdist.BoundedStalenessStrategy(-1),
            "`max_staleness` of BoundedStaleness must be an integer of at "
            "least 0. Received: max_staleness=-1",
        ),
    ],
)
def test_bad_arguments_of_strategies(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize(
    "make",
    nightly.also(
        [lambda: tfdist.BackupWorkersStrategy(3)],
        [lambda: tfdist.BoundedStalenessStrategy(2)],
    ),
)
def test_a_script_for_a_cluster_runs_in_one_process(make):
    strategy = make()
    with strategy.scope():
        model = twins.compiled(twins.perceptron())
    x, y = twins.classification()
    model.fit(x, y, batch_size=6, verbose=0)
    assert strategy.updates_applied() == [4]
