"""What the straggler draws, whom it delays, and what it refuses."""

import math
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.testing import Straggler
from tfdist.testing import straggler

COUNT = 200_000


@pytest.fixture
def slept(monkeypatch):
    """Seconds that the straggler would have slept, in order."""
    seconds = []
    # Not the function of the module `time`, which others use as well.
    fake = types.SimpleNamespace(sleep=seconds.append)
    monkeypatch.setattr(straggler, "time", fake)
    return seconds


def fit(callback, *, steps=10, epochs=1, strategy=None, **compile_arguments):
    """Trains a tiny model for so many steps per epoch."""
    with (strategy or tfdist.AsyncStrategy()).scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **compile_arguments)
    x = np.ones([steps, 1], np.float32)
    model.fit(
        x, x, batch_size=1, epochs=epochs, callbacks=[callback], verbose=0
    )


def test_constant_delays_are_all_the_same():
    assert Straggler(0.25).draw_delays(5).tolist() == [0.25] * 5


@pytest.mark.parametrize("sigma", [0.3, 1.0])
def test_lognormal_has_the_mean_and_the_quantiles_of_its_formula(sigma):
    delays = Straggler(2.0, distribution="lognormal", shape=sigma).draw_delays(
        COUNT
    )
    # Variance of the lognormal: mean^2 (exp(sigma^2) - 1).
    error = 2.0 * math.sqrt(math.expm1(sigma**2) / COUNT)
    assert abs(delays.mean() - 2.0) < 4 * error
    # ln(delay) is normal: mean ln 2 - sigma^2 / 2, deviation sigma.
    center = math.log(2.0) - sigma**2 / 2
    for quantile, deviations in ((0.5, 0.0), (0.8413, 1.0), (0.9772, 2.0)):
        bound = math.exp(center + deviations * sigma)
        assert_share_below(delays, bound, quantile)


@pytest.mark.parametrize("alpha", [2.5, 4.0])
def test_pareto_has_the_mean_and_the_quantiles_of_its_formula(alpha):
    delays = Straggler(2.0, distribution="pareto", shape=alpha).draw_delays(
        COUNT
    )
    minimum = 2.0 * (alpha - 1) / alpha
    assert delays.min() >= minimum
    # Variance: minimum^2 alpha / ((alpha - 1)^2 (alpha - 2)).
    variance = minimum**2 * alpha / ((alpha - 1) ** 2 * (alpha - 2))
    assert abs(delays.mean() - 2.0) < 6 * math.sqrt(variance / COUNT)
    # P(delay > d) = (minimum / d)^alpha.
    for quantile in (0.5, 0.9, 0.99):
        bound = minimum * (1 - quantile) ** (-1 / alpha)
        assert_share_below(delays, bound, quantile)


def assert_share_below(delays, bound, quantile):
    """The share of delays below the bound, within four standard errors."""
    error = math.sqrt(quantile * (1 - quantile) / len(delays))
    # The quantiles above are given to four digits.
    assert abs((delays < bound).mean() - quantile) < 4 * error + 1e-4


@pytest.mark.parametrize(
    "arguments",
    [
        {"distribution": "lognormal"},
        {"distribution": "pareto"},
        {"probability": 0.0},
    ],
)
def test_defaults_give_delays_that_are_finite(arguments):
    delays = Straggler(1.0, **arguments).draw_delays(1000)
    assert delays.shape == (1000,)
    assert np.isfinite(delays).all() and (delays >= 0).all()


def test_probability_is_the_share_of_delayed_steps():
    delays = Straggler(1.0, probability=0.1).draw_delays(COUNT)
    assert set(delays.tolist()) == {0.0, 1.0}
    assert_share_below(delays, 0.5, 0.9)


def test_same_seed_and_worker_give_the_same_delays():
    def draw(seed, worker):
        slow = Straggler(
            1.0, distribution="lognormal", probability=0.5, seed=seed
        )
        return slow.draw_delays(50, worker).tolist()

    assert draw(1, 2) == draw(1, 2)
    assert len({tuple(draw(*pair)) for pair in [(1, 2), (2, 1), (1, 1)]}) == 3


@pytest.mark.nightly
@pytest.mark.parametrize("distribution", straggler.DISTRIBUTIONS)
def test_training_is_delayed_as_drawn(slept, distribution):
    slow = Straggler(
        3.0, distribution=distribution, probability=0.5, workers=[0], seed=7
    )
    fit(slow, steps=10, epochs=2)
    fit(slow, steps=10)  # Goes on where the last one ended.
    expected = slow.draw_delays(30)
    assert slept == expected[expected > 0].tolist()
    assert 0 < len(slept) < 30
    assert slow.delays == len(slept)
    assert slow.total_seconds == pytest.approx(sum(slept))


def test_other_workers_are_not_delayed(slept):
    slow = Straggler(3.0, workers=[1, 2])
    fit(slow)
    assert slept == []
    assert (slow.delays, slow.total_seconds) == (0, 0.0)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_worker_goes_by_its_number_in_the_cluster(slept, number):
    cluster = types.SimpleNamespace(worker_id=number)
    strategy = types.SimpleNamespace(cluster=cluster)
    slow = Straggler(3.0, workers=(k for k in (1, 2)), probability=0.5)
    slow.set_model(types.SimpleNamespace(distribute_strategy=strategy))
    slow.on_train_begin()
    for batch in range(20):
        slow.on_train_batch_begin(batch)
    drawn = slow.draw_delays(20, number)
    assert slept == (drawn[drawn > 0].tolist() if number else [])


def test_plain_keras_is_worker_0(slept):
    fit(
        Straggler(3.0, workers=[0]),
        steps=3,
        strategy=tf.distribute.get_strategy(),
    )
    assert slept == [3.0] * 3


def test_one_delay_for_the_steps_of_an_execution(slept):
    fit(Straggler(3.0), steps=6, steps_per_execution=3)
    assert slept == [3.0] * 2


@pytest.mark.parametrize(
    "text, worker, distribution",
    [("1:0.5", 1, "constant"), ("0:0.5:lognormal", 0, "lognormal")],
)
def test_a_flag_names_the_worker_and_its_delay(
    slept, text, worker, distribution
):
    slow = Straggler.parse(text, seed=5)
    same = Straggler(0.5, distribution=distribution, workers=[worker], seed=5)
    assert slow.draw_delays(9).tolist() == same.draw_delays(9).tolist()
    fit(slow, steps=2)
    assert len(slept) == (2 if worker == 0 else 0)


@pytest.mark.parametrize(
    "text",
    ["", "1", "1:", ":0.5", "a:0.5", "1:fast", "1:0.5:normal", "-1:0.5"]
    + ["1:0.5:pareto:3", "1:-0.5", "1:nan"],
)
def test_a_malformed_flag_is_shown(text):
    with pytest.raises(ValueError, match="worker:seconds") as error:
        Straggler.parse(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    "name, value, others",
    [
        ("seconds", -1, {}),
        ("seconds", math.nan, {}),
        ("seconds", math.inf, {}),
        ("seconds", "1", {}),
        ("seconds", None, {}),
        ("distribution", "normal", {}),
        ("distribution", None, {}),
        ("shape", 1.0, {}),
        ("shape", 0.0, {"distribution": "lognormal"}),
        ("shape", "1", {"distribution": "lognormal"}),
        ("shape", 1.0, {"distribution": "pareto"}),
        ("probability", -0.1, {}),
        ("probability", 1.1, {}),
        ("probability", None, {}),
        ("workers", 1, {}),
        ("workers", "1", {}),
        ("workers", [0, -1], {}),
        ("workers", [0.5], {}),
        ("workers", [True], {}),
        ("seed", -1, {}),
        ("seed", None, {}),
    ],
)
def test_a_wrong_argument_is_named(name, value, others):
    arguments = {"seconds": 1.0, **others, name: value}
    with pytest.raises(ValueError) as error:
        Straggler(**arguments)
    assert f"Argument `{name}` must be" in str(error.value)
    assert f"Received: {name}={value!r}" in str(error.value)
