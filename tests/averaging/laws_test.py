"""What is one and the same, written in two ways."""

from hypothesis import Phase
from hypothesis import given
from hypothesis import strategies as st
import keras
import numpy as np
import pytest

from tests import laws
from tests.averaging.rounds_test import batches
from tests.averaging.virtual_workers import VirtualWorkers
from tests.averaging.virtual_workers import linear
from tests.runtime.exchange import delay_test
from tests.runtime.exchange.delay_test import RATE
from tests.strategies.twins import assert_same
import tfdist
from tfdist.averaging import ElasticAveraging
from tfdist.averaging import ParameterAveraging
from tfdist.synchronization import Async
from tfdist.synchronization import Sync


def sgd():
    return keras.optimizers.SGD(RATE)


def perceptron(units, activation, bias):
    """A function that makes a compiled model."""

    def build():
        keras.utils.set_random_seed(1)
        hidden = [
            keras.layers.Dense(n, activation=activation, use_bias=bias)
            for n in units
        ]
        model = keras.Sequential(
            [
                keras.Input((delay_test.FEATURES,)),
                *hidden,
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.2), "mse")
        return model

    return build


def check_joined(run, plain, splits, seed):
    """Compares averaging of parts with steps on the whole.

    Args:
      run: `VirtualWorkers` that average every mini-batch.
      plain: The same model without a strategy.
      splits: For each step, how many examples each worker gets.
      seed: Of the data.
    """
    for number, sizes in enumerate(splits):
        parts = batches(sizes, 1, 100 * seed + number)
        run.round(parts)
        x, y = (
            np.concatenate([part[0][k] for part in parts]) for k in range(2)
        )
        plain.train_on_batch(x, y)
        for model in run.models:
            assert_same(_all(model), _all(plain))


def _all(model):
    """All weights as one vector."""
    return np.concatenate([w.ravel() for w in model.get_weights()])


@pytest.fixture(scope="module")
def three():
    """Three workers that average every mini-batch, and plain Keras."""
    build = perceptron((4,), "tanh", True)
    run = VirtualWorkers(3, ParameterAveraging(1), Sync(), build)
    plain = build()
    return run, plain, plain.get_weights()


@pytest.mark.nightly
@laws.settings(max_examples=12, phases=[Phase.generate])
@given(
    splits=st.lists(
        st.tuples(*[st.integers(1, 9)] * 3), min_size=1, max_size=4
    ),
    seed=st.integers(0, 99),
)
def test_averaging_every_batch_is_synchronous_sgd(three, splits, seed):
    """Of parts of different sizes, too: they are weighted."""
    run, plain, first = three
    run.reset()
    plain.set_weights(first)
    check_joined(run, plain, splits, seed)


@pytest.mark.nightly
def test_outer_optimizers_that_are_parameter_averaging_to_the_bit():
    """BMUF without momentum, DiLoCo with an outer SGD of rate 1."""
    one = keras.optimizers.SGD(1.0)
    methods = [
        ParameterAveraging(2),
        tfdist.BMUFStrategy(
            2, block_momentum=0.0, block_rate=1.0, reset_momentum=False
        ).local_steps,
        tfdist.DiLoCoStrategy(2, outer_optimizer=one).local_steps,
    ]
    seen = []
    for method in methods:
        build = linear(lambda: keras.optimizers.SGD(RATE, momentum=0.9))
        run = VirtualWorkers(2, method, Sync(), build)
        seen.append([])
        for number in range(4):
            run.round(batches((4, 2), 2, number))
            seen[-1].append(run.weights())
    np.testing.assert_array_equal(seen[1], seen[0])
    np.testing.assert_array_equal(seen[2], seen[0])


# The elastic move.

numbers = st.floats(-100, 100, width=32)


@laws.settings(max_examples=100)
@given(
    x=st.lists(numbers, min_size=3, max_size=3),
    centre=st.lists(numbers, min_size=3, max_size=3),
    workers=st.integers(1, 8),
    moving_rate=st.floats(0.01, 0.95),
)
def test_elastic_move_conserves_the_sum(x, centre, workers, moving_rate):
    """One worker and the centre; and the centre has moved."""
    method = ElasticAveraging(1, moving_rate=moving_rate)
    method = method.resolve(Async(), None, workers)
    x, centre = np.float32(x), np.float32(centre)
    fresh = method.apply(centre, method.push(x, None))
    own = method.adopt(x, x, None, fresh)
    size = max(1.0, abs(x).max(), abs(centre).max())
    alpha = moving_rate / workers
    np.testing.assert_allclose(own + fresh, x + centre, atol=1e-5 * size)
    np.testing.assert_allclose(
        fresh - centre, alpha * (x - centre), atol=1e-5 * size
    )


@pytest.mark.nightly
@laws.settings(max_examples=100)
@given(
    own=st.lists(numbers, min_size=2, max_size=6),
    centre=numbers,
    moving_rate=st.floats(0.01, 0.95),
)
def test_synchronous_elastic_move_conserves_the_sum(own, centre, moving_rate):
    """All workers and the centre."""
    method = ElasticAveraging(1, moving_rate=moving_rate)
    method = method.resolve(Sync(), None, len(own))
    own, centre = np.float32(own), np.float32(centre)
    pushed = np.mean([method.push(x, centre) for x in own])
    rate = float(method.outer_optimizer().learning_rate)
    moved = centre - rate * pushed
    after = [method.adopt(x, x, centre, moved) for x in own]
    size = max(1.0, abs(own).max(), abs(centre)) * len(own)
    np.testing.assert_allclose(
        sum(after) + moved, own.sum() + centre, atol=1e-5 * size
    )
    np.testing.assert_allclose(
        moved - centre,
        moving_rate * (own.mean() - centre),
        atol=1e-5 * size,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("waits", [False, True], ids=["async", "sync"])
def test_elastic_move_conserves_the_sum_on_servers(waits):
    """All that changes the sum are the gradients, each of its own weights."""
    method = tfdist.ElasticAveragingStrategy(2, alpha=0.4).local_steps
    run = VirtualWorkers(2, method, Sync() if waits else Async(), linear(sgd))
    centre = run.weights()
    own, total = [centre] * 2, 3 * centre
    order = [(0, 1)] * 6 if waits else [(0,), (1,), (0,), (0,), (0,), (1,)]
    data = batches((4, 2), len(order), seed=5)
    for number, workers in enumerate(order):
        now = [[mine[number]] for mine in data]
        for k in workers:
            total = total - RATE * delay_test.gradient(own[k], *now[k][0])
        if waits:
            exchanges, _ = run.round(now)
        else:
            exchanges = run.step(workers[0], *now[workers[0]][0])
        if exchanges:
            centre = run.weights(workers[0])
        own = [run.own_weights(k) for k in range(2)]
        assert_same(sum(own) + centre, total, 2e-6)
    assert run.runtimes[0].updates_applied() == [3]
    assert np.abs(own[0] - own[1]).max() > 1e-3
