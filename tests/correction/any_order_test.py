"""Every correction against its oracle, for any order of the workers.

Hypothesis draws who arrives when, hence all delays; gradients are those of a
quadratic with noise, of the copy that each worker has.
"""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from tests import laws
from tests.correction import oracles
from tests.correction.eager_server import EagerServer
from tfdist import correction

WORKERS, RATE, SIZE = 3, 0.05, 4
CASES = {
    "inverse staleness": (
        lambda: correction.InverseStaleness(0.5),
        lambda: oracles.InverseStaleness(0.5),
    ),
    "delay compensation": (
        lambda: correction.DelayCompensation(0.7, None),
        lambda: oracles.DelayCompensation(0.7),
    ),
    "adaptive delay compensation": (
        lambda: correction.DelayCompensation(variance_decay=0.95),
        lambda: oracles.DelayCompensation(2.0, 0.95),
    ),
    "delay compensation without memory": (
        lambda: correction.DelayCompensation(variance_decay=0),
        lambda: oracles.DelayCompensation(2.0, 0.0),
    ),
    "gap aware": (correction.GapAware, lambda: oracles.GapAware(RATE)),
    "FASGD": (correction.FASGD, oracles.FASGD),
    "FASGD as printed but for the quotient": (
        lambda: correction.FASGD(0.8, 0.7, bias_correction=False),
        lambda: oracles.FASGD(0.8, 0.7, bias_correction=False),
    ),
    "FASGD by the mean": (
        lambda: correction.FASGD(estimator="absmean"),
        lambda: oracles.FASGD(estimator="absmean"),
    ),
    "DANA-Zero": (
        lambda: correction.DANA("zero"),
        lambda: oracles.DanaZero(WORKERS, RATE),
    ),
    "DANA-DC": (
        lambda: correction.DANA("dc", 0.7, lambda_0=0.3),
        lambda: oracles.DanaZero(WORKERS, RATE, 0.7, 0.3),
    ),
    "DANA-Slim": (
        lambda: correction.DANA("slim", 0.8),
        lambda: oracles.DanaSlim(WORKERS, 0.8),
    ),
}
orders = st.lists(st.integers(0, WORKERS - 1), min_size=1, max_size=16)
START = np.linspace(-1, 2, SIZE)
SCALES = np.linspace(0.5, 2, SIZE)


def gradient(parameters, step):
    noise = np.sin(np.arange(1.0, SIZE + 1) * (3 * step + 1))
    return SCALES * np.asarray(parameters, "float64") + noise


@pytest.mark.parametrize("name", CASES)
@laws.settings(max_examples=8, nightly=250)
@given(order=orders)
def test_follows_its_paper(name, order):
    make, make_oracle = CASES[name]
    found = EagerServer(START, WORKERS, make(), RATE)
    wanted = oracles.Server(
        START, WORKERS, make_oracle(), lambda w, g: w - RATE * g
    )
    for step, worker in enumerate(order):
        wanted.arrive(worker, gradient(wanted.copies[worker], step))
        found.arrive(worker, gradient(found.copies[worker], step))
        np.testing.assert_allclose(
            found.copies[worker], wanted.copies[worker], rtol=2e-4, atol=2e-5
        )
    np.testing.assert_allclose(found.theta, wanted.theta, rtol=2e-4, atol=2e-5)


@laws.settings(max_examples=8, nightly=250)
@given(order=orders)
def test_no_compensation_is_asynchronous_sgd_to_the_bit(order):
    for decay in (None, 0.0, 0.95):
        found = EagerServer(
            START, WORKERS, correction.DelayCompensation(0, decay), RATE
        )
        # An identity: 1 / max(1, staleness) * staleness would not be one.
        plain = EagerServer(START, WORKERS, _Nothing(), RATE)
        for step, worker in enumerate(order):
            found.arrive(worker, gradient(found.copies[worker], step))
            plain.arrive(worker, gradient(plain.copies[worker], step))
            np.testing.assert_array_equal(found.theta, plain.theta)


class _Nothing(correction.Correction):
    def correct(self, late, slots):
        return late.values


@laws.settings(max_examples=8, nightly=250)
@given(order=orders)
def test_slim_and_zero_give_the_same_iterates(order):
    """What a worker computes from: Theta of the one, theta_i of the other."""
    zero = EagerServer(START, WORKERS, correction.DANA("zero"), RATE)
    slim = EagerServer(START, WORKERS, correction.DANA("slim"), RATE)
    for step, worker in enumerate(order):
        # Each of its own copy: an error would grow.
        zero.arrive(worker, gradient(zero.copies[worker], step))
        slim.arrive(worker, gradient(slim.copies[worker], step))
        np.testing.assert_allclose(
            zero.copies[worker], slim.copies[worker], rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize(
    "name",
    [n for n in CASES if "FASGD" not in n and "DANA" not in n],
)
def test_one_worker_is_not_corrected(name):
    made = CASES[name][0]()
    if name == "inverse staleness":
        made = correction.InverseStaleness()
    found = EagerServer(START, 1, made, RATE)
    plain = EagerServer(START, 1, _Nothing(), RATE)
    for step in range(8):
        found.arrive(0, gradient(found.copies[0], step))
        plain.arrive(0, gradient(plain.copies[0], step))
        np.testing.assert_array_equal(found.theta, plain.theta)


@pytest.mark.parametrize("lost", range(WORKERS))
def test_momentum_of_a_worker_that_is_gone_leaves_the_sum(lost):
    oracle = oracles.DanaZero(WORKERS, RATE)
    wanted = oracles.Server(START, WORKERS, oracle, lambda w, g: w - RATE * g)
    found = EagerServer(START, WORKERS, correction.DANA("zero"), RATE)
    for step, worker in enumerate([0, 1, 2, 1, 0, 2, None, 0, 1, 2, 2, 0, 1]):
        if worker is None:
            oracle.gone(lost)
            found.forget(lost)
            continue
        wanted.arrive(worker, gradient(wanted.copies[worker], step))
        found.arrive(worker, gradient(found.copies[worker], step))
        np.testing.assert_allclose(
            found.copies[worker], wanted.copies[worker], rtol=2e-5, atol=2e-6
        )
