"""Periods, warm-up, speeds, and outer optimizers by themselves."""

from unittest import mock

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
from tests.runtime.exchange import delay_test
import tfdist
from tfdist.averaging import DelayedNesterov
from tfdist.averaging import ParameterAveraging
from tfdist.averaging import base
from tfdist.averaging import outer_optimizers
from tfdist.strategies import registry
from tfdist.synchronization import Async
from tfdist.synchronization import SoftSync
from tfdist.synchronization import Sync

# Outer optimizers.


def trajectory(optimizer, changes):
    """What becomes of zeros with these changes, an array."""
    variable = keras.Variable(np.zeros(3, "float32"))
    optimizer.build([variable])
    seen = []
    for change in changes:
        optimizer.apply([tf.constant(change, tf.float32)])
        seen.append(variable.numpy())
    return np.array(seen)


def changes(number, seed):
    return np.random.default_rng(seed).normal(size=(number, 3))


@pytest.mark.parametrize(
    ("name", "momenta"),
    [("SGD", 2), ("RMSprop", 2), ("Adam", 2)],
)
def test_momenta_of_inner_optimizers(name, momenta):
    kind = getattr(keras.optimizers, name)
    momentum = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    inner = kind(0.1, **momentum)
    for optimizer in inner, keras.optimizers.LossScaleOptimizer(inner):
        optimizer.build([keras.Variable(np.ones(3, "float32")) for _ in "ab"])
        found = [base.is_momentum(v.name) for v in optimizer.variables]
        assert sum(found) == momenta


@pytest.mark.nightly
@laws.settings(max_examples=15)
@given(
    delay=st.integers(1, 5),
    share=st.floats(0, 1),
    momentum=st.floats(0, 0.99),
    seed=st.integers(0, 999),
)
def test_delayed_nesterov_is_algorithm_3(delay, share, momentum, seed):
    c = share / delay
    given = changes(11, seed)
    oracle = oracles.DelayedNesterov(0.7, momentum, delay, c)
    theta, wanted = np.zeros(3), []
    for change in given:
        theta = oracle.apply(theta, change)
        wanted.append(theta)
    found = trajectory(DelayedNesterov(0.7, momentum, delay, c), given)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
@laws.settings(max_examples=15)
@given(
    rate=st.floats(0.01, 2),
    momentum=st.floats(0.01, 0.99),
    c=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 999),
)
def test_without_delay_it_is_nesterovs_momentum(rate, momentum, c, seed):
    given = changes(8, seed)
    nesterov = keras.optimizers.SGD(rate, momentum, nesterov=True)
    np.testing.assert_allclose(
        trajectory(DelayedNesterov(rate, momentum, c=c), given),
        trajectory(nesterov, given),
        rtol=1e-5,
        atol=1e-5,
    )


OUTER = [
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "Adamax",
    "Ftrl",
    "Lamb",
    "Lion",
    "Muon",
    "Nadam",
    "RMSprop",
    "ScheduleFreeAdamW",
]
REFUSED = {"Adafactor", "Muon", "Nadam", "ScheduleFreeAdamW"}


class Applies(keras.optimizers.SGD):
    """A step of its own, as users write them."""

    def apply(self, grads, trainable_variables=None):
        super().apply([-g for g in grads], trainable_variables)


def _outer(name):
    kind = getattr(keras.optimizers, name, None)
    if kind is None:
        pytest.skip(f"This Keras has no {name}.")
    weight_decay = {"weight_decay": 0.0} if name == "Muon" else {}
    return kind(0.01, **weight_decay)


@pytest.mark.parametrize(
    "name",
    nightly.also(
        ["Lion"], ["Adam", *sorted({*OUTER} - REFUSED - {"Adam", "Lion"})]
    ),
)
def test_an_outer_optimizer_does_what_keras_does_with_the_change(name):
    """With one local step, a change is the gradient times the rate."""
    rate = 0.5
    run = VirtualWorkers(
        1,
        ParameterAveraging(1, _outer(name)),
        build=linear(lambda: keras.optimizers.SGD(rate)),
    )
    plain = linear(lambda: _outer(name))()
    plain.set_weights(run.models[0].get_weights())
    plain.compile(
        _outer(name), lambda y, p: rate * keras.losses.mean_squared_error(y, p)
    )
    for x, y in delay_test.batches(4, seed=0):
        run.step(0, x, y)
        plain.train_on_batch(x, y)
    for one, other in zip(
        run.models[0].get_weights(), plain.get_weights(), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda name=name: _outer(name) for name in sorted(REFUSED)),
        lambda: Applies(0.1),
        lambda: keras.optimizers.MultiOptimizer(
            lambda variable: keras.optimizers.SGD(0.1)
        ),
    ],
    ids=[*sorted(REFUSED), "own apply", "MultiOptimizer"],
)
def test_an_outer_optimizer_that_updates_no_weight_by_itself_is_refused(make):
    for kind in ParameterAveraging, tfdist.DownpourStrategy:
        with pytest.raises(ValueError, match="`outer_optimizer` .* must be an"):
            kind(2, outer_optimizer=make())


@pytest.mark.parametrize(
    ("synchronization", "delay"),
    [
        (Async(), 8),
        # An update has the changes of 8, 4 and 2 workers.
        (SoftSync(), 1),
        (SoftSync(4), 2),
        (SoftSync(n=4), 4),
    ],
    ids=repr,
)
def test_momentum_moves_once_for_the_changes_of_all(synchronization, delay):
    steps = ParameterAveraging(2, outer_optimizers.DelayedMomentum(0.7, 0.9))
    steps = steps.resolve(synchronization, None, 8)
    assert steps.outer_optimizer().delay == delay


@pytest.mark.parametrize(
    ("synchronization", "momentum"),
    [
        (Sync(), 7 / 8),
        (Sync(backup_workers=4), 3 / 4),
        # More workers may come than those that begin.
        (Sync(backup_workers=8), 0.0),
        (Sync(backup_workers=9), 0.0),
        (SoftSync(4), 3 / 4),
        (SoftSync(n=4), 1 / 2),
        # Each change is an update.
        (SoftSync(1), 0.0),
    ],
    ids=repr,
)
def test_block_momentum_is_of_the_changes_in_an_update(
    synchronization, momentum
):
    steps = ParameterAveraging(
        2, outer_optimizers.BlockMomentum(None, 1.0, True)
    )
    steps = steps.resolve(synchronization, None, 8)
    assert steps.outer_optimizer().momentum == momentum


def test_delayed_nesterov_is_made_of_its_config():
    made = DelayedNesterov(0.5, 0.8, 4, 0.1)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(made))
    assert again.get_config() == made.get_config()
    np.testing.assert_array_equal(
        trajectory(again, changes(9, 0)), trajectory(made, changes(9, 0))
    )


# How many steps.


@pytest.mark.parametrize(
    "text",
    [
        "bmuf:block_rate=1",
        "bmuf:block_rate=1:nesterov=false",
        "diloco:outer_learning_rate=1",
        "async_local_sgd:outer_learning_rate=1",
        "downpour:outer_learning_rate=1",
        "downpour:outer_optimizer=sgd:outer_learning_rate=1",
    ],
)
def test_a_rate_that_is_an_integer_is_a_rate(text):
    steps = registry.method(text).resolve(2).local_steps
    assert float(steps.outer_optimizer().learning_rate.numpy()) == 1.0


@laws.settings(max_examples=50)
@given(
    period=st.integers(1, 50),
    warmup=st.integers(0, 50),
    step=st.integers(1, 100),
)
def test_period_is_one_during_the_warm_up(period, warmup, step):
    found = int(base.period_steps(period, warmup, tf.constant(step, tf.int64)))
    assert found == (1 if step <= warmup else period)


def test_warm_up_and_then_the_period():
    method = ParameterAveraging(3, warmup_steps=4)
    found = [int(method.steps(tf.constant(k, tf.int64))) for k in range(1, 7)]
    assert found == [1, 1, 1, 1, 3, 3]


@pytest.mark.nightly
def test_schedule_of_the_period():
    """It is asked after each step; less than one is one."""
    run = VirtualWorkers(1, ParameterAveraging(lambda step: (step - 1) // 4))
    ((x, y),) = delay_test.batches(1, seed=0)
    found = [e.local_steps for _ in range(19) for e in run.step(0, x, y)]
    # 0 and 1 up to step 8, 2 up to step 12, 3 up to 16, then 4.
    assert found == [1] * 8 + [2, 2] + [3] + [4]


@pytest.mark.nightly
def test_a_slow_worker_takes_fewer_steps():
    """As the speeds on the server say, which each exchange brings."""
    method = tfdist.AsyncLocalSGDStrategy(6).local_steps
    run = VirtualWorkers(2, method, build=linear(lambda: "sgd"))
    ((x, y),) = delay_test.batches(1, seed=0)
    for k in (0, 1):
        for _ in range(12):
            run.step(k, x, y)
    runtime = run.runtimes[0]
    (inner,) = runtime.local.inners
    variable = inner.speeds.variable
    runtime.pull()
    assert (variable.numpy() > 0).all()  # Both have measured theirs.
    variable.assign([[1.0, 1e9], [3.0, 1e9]])
    exchanges = [run.step(0, x, y) for _ in range(2)]
    assert [len(e) for e in exchanges] == [0, 1]
    assert exchanges[1][0].local_steps == 2  # A third of six.


@pytest.mark.nightly
def test_each_optimizer_has_its_own_speed():
    """Two that exchange one after the other would seem fast, else."""
    method = tfdist.AsyncLocalSGDStrategy(2).local_steps
    build = linear(lambda: "sgd")
    run = VirtualWorkers(1, method, build=build)
    (runtime,) = run.runtimes
    with run.workers[0].scope():
        other = build()
    ((x, y),) = delay_test.batches(1, seed=0)
    for _ in range(2):
        run.step(0, x, y)
        other.train_on_batch(x, y)
    first, second = (inner.speeds for inner in runtime.local.inners)
    began = [speeds._began.numpy() for speeds in (first, second)]
    for _ in range(2):
        run.step(0, x, y)
    assert first._began.numpy() > began[0]
    assert second._began.numpy() == began[1] > 0
    # A pause between two calls of `fit` is not counted.
    runtime.local.watch(mock.Mock(), None)
    assert second._began.numpy() > began[1]
