import numpy as np
import pytest

from tfdist import simulation
from tfdist.simulation import compute

DRAWN = {
    "constant": simulation.Constant(0.5),
    "lognormal": simulation.LogNormal(0.5, 0.4),
    "gamma": simulation.Gamma(0.5),
    "pareto": simulation.Pareto(0.5, shape=3.5),
    "sum": simulation.Gamma(0.2) + simulation.Constant(0.3),
    "sometimes": simulation.Constant(0.4)
    + simulation.Sometimes(simulation.Constant(1.0), 0.1),
}


def draws(time, count, worker=0, seed=1):
    stream = np.random.default_rng(seed)
    return np.array([time.draw(worker, k, stream) for k in range(count)])


@pytest.mark.parametrize("name", DRAWN)
def test_mean_is_the_mean_of_what_is_drawn(name):
    time, count = DRAWN[name], 4000
    found = draws(time, count)
    assert time.mean(0) == pytest.approx(0.5)
    # Six standard errors.
    error = 6 * found.std() / np.sqrt(count)
    assert found.mean() == pytest.approx(0.5, abs=max(error, 1e-12))
    assert found.min() >= 0


def test_gamma_has_the_deviation_of_danas_paper():
    found = draws(simulation.Gamma(128.0, shape=100.0), 20_000)
    assert found.std() == pytest.approx(12.8, rel=0.03)


def test_pareto_has_a_least_value_and_the_tail_of_its_shape():
    found = draws(simulation.Pareto(0.6, shape=1.5), 20_000)
    assert found.min() >= 0.2
    # P(t > x) = (0.2 / x) ** 1.5
    share = 2.0**-1.5
    assert np.mean(found > 0.4) == pytest.approx(share, abs=0.02)


def test_slow_workers_take_times_as_long_and_no_one_else():
    time = simulation.SlowWorkers(simulation.Constant(2.0), {1: 3})
    assert draws(time, 2, worker=1).tolist() == [6.0, 6.0]
    assert draws(time, 2, worker=0).tolist() == [2.0, 2.0]
    assert (time.mean(0), time.mean(1)) == (2.0, 6.0)


def test_sometimes_happens_to_the_named_workers_alone():
    extra = simulation.Sometimes(simulation.Constant(5.0), workers=[2])
    time = simulation.Constant(1.0) + extra
    assert [draws(time, 1, worker=w)[0] for w in range(4)] == [1, 1, 6, 1]


def test_recorded_repeats_what_was_seen():
    time = simulation.Recorded([[1.0, 2.0, 3.0], [10.0, 20.0]])
    assert draws(time, 5, worker=0).tolist() == [1, 2, 3, 1, 2]
    assert draws(time, 3, worker=1).tolist() == [10, 20, 10]
    # Worker 2 is the first again, from elsewhere on.
    assert sorted(draws(time, 3, worker=2).tolist()) == [1, 2, 3]
    assert draws(time, 1, worker=2)[0] != 1
    assert time.mean(1) == 15


def test_workers_streams_are_their_own():
    gamma = simulation.Gamma(1.0)
    assert np.any(draws(gamma, 5, seed=1) != draws(gamma, 5, seed=2))
    np.testing.assert_array_equal(draws(gamma, 5), draws(gamma, 5))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("constant:0.1", "Constant(0.1)"),
        ("gamma:0.1", "Gamma(0.1, shape=100)"),
        ("gamma:0.1:4", "Gamma(0.1, shape=4)"),
        ("lognormal:0.2:1", "LogNormal(0.2, sigma=1)"),
        ("pareto:2:1.5", "Pareto(2, shape=1.5)"),
    ],
)
def test_flags_text_is_parsed(text, wanted):
    assert repr(compute.parse(text)) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "gamma", "gamma:", "gamma:-1", "gamma:1:0", "constant:1:2", "beta:1"]
    + ["pareto:1:1", "gamma:nan", "gamma:1:2:3"],
)
def test_bad_text_is_refused_with_what_came(text):
    with pytest.raises(ValueError, match="Received") as error:
        compute.parse(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: simulation.Constant(-1),
        lambda: simulation.Gamma(1, shape=0),
        lambda: simulation.Sometimes(simulation.Constant(1), 1.5),
        lambda: simulation.Sometimes(1.0, 0.5),
        lambda: simulation.SlowWorkers(simulation.Constant(1), {0: -2}),
        lambda: simulation.SlowWorkers(simulation.Constant(1), [2]),
        lambda: simulation.Recorded([]),
        lambda: simulation.Recorded([[1.0, -1.0]]),
    ],
)
def test_bad_arguments_are_refused(make):
    with pytest.raises(ValueError, match="Received"):
        make()
