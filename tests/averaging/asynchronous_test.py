"""Methods with local steps where nobody waits, against NumPy, with delays.

Workers take their steps in a given order, so it is known of each push how
many others came between what it began from and itself.
"""

from unittest import mock

from hypothesis import Phase
from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import laws
from tests import nightly
from tests.averaging import oracles
from tests.averaging.virtual_workers import VirtualWorkers
from tests.averaging.virtual_workers import linear
from tests.averaging.virtual_workers import vector
from tests.correction import oracles as corrected
from tests.runtime.exchange import delay_test
import tfdist
from tfdist import correction
from tfdist.averaging import ElasticAveraging
from tfdist.averaging import ParameterAveraging
from tfdist.synchronization import Async
from tfdist.synchronization import BoundedStaleness
from tfdist.synchronization import SoftSync

WORKERS, RATE, PERIOD = 2, 0.05, 2
START = np.array([1.0] * delay_test.FEATURES + [0.0])
# All begin, the first one first: the others take over what it makes.
BEGIN = [0, 1]
LATE = [*BEGIN, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0]
SIZES = (4, 1)  # Of the batches of each worker.


def sgd():
    return keras.optimizers.SGD(RATE)


def batches(order, seed=0):
    """For each step its (x, y), of the size of that worker's batches."""
    random = np.random.default_rng(seed)
    return [
        (
            random.normal(size=(SIZES[k], delay_test.FEATURES)).astype("f"),
            random.normal(size=(SIZES[k], 1)).astype("f"),
        )
        for k in order
    ]


def assert_close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=5e-5, atol=5e-6)


class LocalSgd:
    """What each push of worker k does to `tests.correction.oracles.Server`.

    Args:
      server: The `Server`, whose gradients are changes of weights.
      inner: Callable that makes a worker's optimizer.
    """

    def __init__(self, server, inner):
        self.server = server
        self.own = list(server.copies)
        self._inners = [inner() for _ in self.own]
        self._steps = [0] * len(self.own)

    def step(self, k, x, y):
        """Worker `k` takes a step; returns the staleness of its push."""
        gradient = delay_test.gradient(self.own[k], x, y)
        self.own[k] = self._inners[k].apply(self.own[k], gradient)
        self._steps[k] += 1
        if self._steps[k] % PERIOD:
            return None
        change = self.server.copies[k] - self.own[k]
        staleness = self.server.arrive(k, change)
        self.own[k] = self.server.copies[k]
        return staleness


def check_local_sgd(run, oracle, order, seed=0):
    """Takes steps in `order`; compares all that can be seen of each."""
    (before,) = run.runtimes[0].updates_applied()
    for k, (x, y) in zip(order, batches(order, seed), strict=True):
        exchanges = run.step(k, x, y)
        staleness = oracle.step(k, x, y)
        assert [e.staleness for e in exchanges] == (
            [] if staleness is None else [staleness]
        )
        assert_close(run.own_weights(k), oracle.own[k])
        # In the middle of a period the worker shows what it began from.
        assert_close(run.weights(k), oracle.server.copies[k])
    (updates,) = run.runtimes[0].updates_applied()
    assert updates - before == oracle.server.version


def outer_sgd(theta, change):
    return theta - change


@pytest.mark.nightly
@pytest.mark.parametrize(
    "method", nightly.also([Async()], [BoundedStaleness(99)]), ids=repr
)
def test_late_changes_are_applied_to_the_newest_parameters(method):
    """Statistics count by workers: one of N has its share of 1 / N."""
    run = VirtualWorkers(
        WORKERS,
        ParameterAveraging(PERIOD),
        method,
        linear(sgd, [delay_test.Aside]),
    )
    server = corrected.Server(START, WORKERS, corrected.Nothing(), outer_sgd)
    check_local_sgd(run, LocalSgd(server, lambda: oracles.Sgd(RATE)), LATE)
    there = np.zeros(delay_test.FEATURES)
    here, steps = [there] * WORKERS, [0] * WORKERS
    for k, (x, _) in zip(LATE, batches(LATE), strict=True):
        here[k] = 0.9 * here[k] + 0.1 * x.mean(axis=0)
        steps[k] += 1
        if steps[k] % PERIOD == 0:
            there = there + (here[k] - there) / WORKERS
            here[k] = there
    # The last one has just exchanged.
    found = run.models[LATE[-1]].layers[0].norm.moving_mean.numpy()
    assert_close(found, there)


@pytest.fixture(scope="module")
def delayed():
    """Workers that train with Adam; the strategy's own outer optimizer."""
    method = tfdist.AsyncLocalSGDStrategy(
        PERIOD,
        outer_optimizer=lambda num_workers: tfdist.averaging.DelayedNesterov(
            delay=num_workers, c=0.2
        ),
        dynamic=False,
    )
    build = linear(lambda: keras.optimizers.Adam(RATE))
    return VirtualWorkers(WORKERS, method.local_steps, build=build)


@pytest.mark.nightly
@laws.settings(max_examples=6, phases=[Phase.explicit, Phase.generate])
@given(order=st.lists(st.integers(0, WORKERS - 1), max_size=16))
@example(order=LATE[2:])
def test_delayed_nesterov_in_any_order_of_workers(delayed, order):
    outer = oracles.DelayedNesterov(0.7, 0.9, WORKERS, 0.2)
    server = corrected.Server(START, WORKERS, corrected.Nothing(), outer.apply)
    oracle = LocalSgd(server, lambda: oracles.Adam(RATE))
    delayed.reset()
    check_local_sgd(delayed, oracle, [*BEGIN, *order])


CORRECTIONS = {
    "inverse staleness": (
        lambda: correction.InverseStaleness(0.5),
        lambda: corrected.InverseStaleness(0.5),
    ),
    "delay compensation": (
        lambda: correction.DelayCompensation(0.8, None),
        lambda: corrected.DelayCompensation(0.8),
    ),
    "DANA-Zero": (
        lambda: correction.DANA("zero", 0.5),
        lambda: corrected.DanaZero(WORKERS, 1.0, 0.5),
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    nightly.also(["delay compensation"], ["DANA-Zero", "inverse staleness"]),
)
def test_late_changes_are_corrected(name):
    make, make_oracle = CORRECTIONS[name]
    run = VirtualWorkers(WORKERS, ParameterAveraging(PERIOD), correction=make())
    server = corrected.Server(START, WORKERS, make_oracle(), outer_sgd)
    check_local_sgd(run, LocalSgd(server, lambda: oracles.Sgd(RATE)), LATE)


@pytest.mark.nightly
def test_updates_of_several_weigh_them_by_their_examples():
    """SoftSync: each update is of the next two changes."""
    run = VirtualWorkers(WORKERS, ParameterAveraging(PERIOD), SoftSync(2))
    theta, waiting = START, []
    own, anchors = [START] * WORKERS, [START] * WORKERS
    steps = [0] * WORKERS
    for k, (x, y) in zip(LATE, batches(LATE), strict=True):
        run.step(k, x, y)
        own[k] = own[k] - RATE * delay_test.gradient(own[k], x, y)
        steps[k] += 1
        if steps[k] % PERIOD == 0:
            waiting.append((SIZES[k], anchors[k] - own[k]))
            if len(waiting) == 2:
                total = sum(n for n, _ in waiting)
                theta = theta - sum(n * d for n, d in waiting) / total
                waiting = []
            own[k] = anchors[k] = theta
        assert_close(run.own_weights(k), own[k])
    assert run.runtimes[0].updates_applied() == [len(LATE) // PERIOD // 2]


@pytest.mark.nightly
def test_elastic_averaging_with_momentum():
    """EAMSGD; without momentum see `tests.multi_process.averaging_test`."""
    momentum, nesterov = 0.9, True
    method = tfdist.ElasticAveragingStrategy(PERIOD).local_steps
    build = linear(
        lambda: keras.optimizers.SGD(RATE, momentum, nesterov=nesterov)
    )
    run = VirtualWorkers(WORKERS, method, build=build)
    oracle = oracles.ElasticAsync(
        START,
        WORKERS,
        delay_test.gradient,
        lambda: oracles.Sgd(RATE, momentum, nesterov),
        0.9 / WORKERS,
        PERIOD,
    )
    centres = [START] * WORKERS
    for k, (x, y) in zip(LATE, batches(LATE), strict=True):
        exchanges = run.step(k, x, y)
        oracle.step(k, x, y)
        if exchanges:
            centres[k] = oracle.centre
        assert_close(run.own_weights(k), oracle.own[k])
        # What is shown is the centre, as of the last exchange.
        assert_close(run.weights(k), centres[k])


@pytest.mark.nightly
def test_own_weights_follow_what_the_chief_sets():
    """Else their elastic force would pull the centre back."""
    run = VirtualWorkers(WORKERS, ElasticAveraging(1, alpha=0.25))
    for k, (x, y) in zip(BEGIN, batches(BEGIN), strict=True):
        run.step(k, x, y)
    zeros = np.zeros_like(START)
    run.models[0].set_weights([zeros[:-1, None], zeros[-1:]])
    other = run.runtimes[1]
    other.pull()
    assert run.own_weights(1).any()
    other.local.adopt_given()
    assert not run.own_weights(1).any()
    # In a ring all had the same; what has changed is what the chief has set.
    run.step(0, x, y)
    own = run.own_weights(0)
    kernel, _ = run.models[0].trainable_variables
    sevens = tf.fill(kernel.shape, 7.0)
    run.runtimes[0].local.take_over(lambda: kernel.value.assign_replica(sevens))
    assert_close(run.own_weights(0), [7.0] * len(own[:-1]) + [own[-1]])


@pytest.mark.parametrize(
    ("n_fetch", "n_push"), nightly.also([(3, 2)], [(1, 3)])
)
def test_downpour(n_fetch, n_push):
    """With the paper's Adagrad on the servers."""
    method = tfdist.DownpourStrategy(n_fetch, n_push).local_steps
    run = VirtualWorkers(WORKERS, method)
    oracle = oracles.Downpour(
        START,
        WORKERS,
        delay_test.gradient,
        RATE,
        oracles.Adagrad(0.01),
        n_fetch,
        n_push,
    )
    for k, (x, y) in zip(LATE, batches(LATE), strict=True):
        run.step(k, x, y)
        oracle.step(k, x, y)
        assert_close(run.own_weights(k), oracle.own[k])
    assert run.runtimes[0].updates_applied() == [oracle.pushes]


@pytest.mark.nightly
def test_model_that_is_built_within_a_period_begins_with_the_chiefs_values():
    cluster = VirtualWorkers(WORKERS, ParameterAveraging(4), build=linear(sgd))
    for k, batch in zip(BEGIN, batches(BEGIN), strict=True):
        cluster.step(k, *batch)
    kernels = []
    for k in BEGIN:
        keras.utils.set_random_seed(k)
        with cluster.workers[k].scope():
            layer = keras.layers.Dense(1)
            layer.build((None, 3))
        # Reading swaps own values and anchors, also those of the new model.
        kernels.append((layer.kernel.value, layer.kernel.numpy()))
    for k in BEGIN:
        cluster.runtimes[k].commit()
    (_, first), (second, own) = kernels
    assert np.all(first != own)
    for made in second, cluster.runtimes[1].local._own_values.shadow(second):
        np.testing.assert_array_equal(made.read_value(), first)


@pytest.mark.nightly
def test_a_model_that_is_built_within_a_period_is_compensated():
    """No pull has given its values: those of the period would be lost."""
    made = correction.DelayCompensation(0.3, None, backups="server")
    build = linear(sgd)
    run = VirtualWorkers(1, ParameterAveraging(2), build=build, correction=made)
    (runtime,) = run.runtimes
    ((x, y),) = batches([0])
    run.step(0, x, y)
    runtime.local.fit = mock.Mock(is_over=lambda: False)
    with run.workers[0].scope():
        other = build()
    for _ in range(2):
        other.train_on_batch(x, y)
    assert runtime.updates_applied() == [1]
    # Of one worker nothing is late.
    wanted = START
    for _ in range(2):
        wanted = wanted - RATE * delay_test.gradient(wanted, x, y)
    assert_close(vector(other), wanted)
