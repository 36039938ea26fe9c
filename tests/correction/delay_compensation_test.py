"""Delay compensation: golden values, limits, rows, refusals.

Zheng et al. 2017 (papers.md 6).
"""

import numpy as np
import pytest

from tests.correction.eager_server import late
from tests.correction.eager_server import make_slots
from tfdist.correction import DelayCompensation
from tfdist.strategies import registry


def correct(correction, slots, *args, **kwargs):
    return correction.correct(late(*args, **kwargs), slots).numpy()


def test_first_updates_of_the_constant_variant():
    """G + 0.04 g^2 d, by hand: g = 5, d = 2 -> 5 + 0.04 * 25 * 2 = 7."""
    correction = DelayCompensation(variance_decay=None)
    slots = make_slots(correction, [2])
    found = correct(correction, slots, [5.0, -5.0], now=[3.0, 3.0], then=[1, 1])
    np.testing.assert_allclose(found, [7.0, -3.0], rtol=1e-6)
    # Backwards, too: -0.04 * 25 * 2.
    found = correct(correction, slots, [5.0, -5.0], now=[1.0, 1.0], then=[3, 3])
    np.testing.assert_allclose(found, [3.0, -7.0], rtol=1e-6)


def test_first_updates_of_the_adaptive_variant():
    """Mean squares 0.05 g^2 and 0.95 of that + 0.05 g^2; lambda_0 = 2.

    g = 2: 0.2 and 0.39; lambda = 2 / sqrt(.), so with d = 0.5 the gradient
    grows by lambda * 4 * 0.5.
    """
    correction = DelayCompensation()
    slots = make_slots(correction, [1])
    for mean_square in (0.2, 0.39):
        found = correct(correction, slots, [2.0], now=[1.5], then=[1.0])
        grown = 2 / np.sqrt(mean_square + 1e-7) * 4 * 0.5
        np.testing.assert_allclose(found, [2 + grown], rtol=1e-5)


def test_hessian_of_a_quadratic_gives_the_gradient_of_now():
    """gradient(w) = h w + b; lambda g^2 = h leaves nothing of the delay."""
    hessian, b = 1.5, -0.25
    then, now = 2.0, -1.0
    g = hessian * then + b
    correction = DelayCompensation(hessian / g**2, None)
    found = correct(
        correction, make_slots(correction, [1]), [g], now=[now], then=[then]
    )
    np.testing.assert_allclose(found, [hessian * now + b], rtol=1e-6)


@pytest.mark.parametrize("decay", [None, 0.0, 0.95])
@pytest.mark.parametrize("lambda_0", [0.0, 0.3])
def test_rows_are_compensated_as_the_whole(decay, lambda_0):
    """A row that comes twice is the sum of the two, as in a batch."""
    correction = DelayCompensation(lambda_0, decay)
    random = np.random.default_rng(0)
    dense_slots = make_slots(correction, [5, 2])
    slots = make_slots(correction, [5, 2])
    for _ in range(3):
        rows = [3, 0, 3, 3]
        values = random.normal(size=(4, 2)).astype("float32")
        now, then = random.normal(size=(2, 5, 2)).astype("float32")
        gradient = np.zeros((5, 2), "float32")
        np.add.at(gradient, rows, values)
        dense = correct(correction, dense_slots, gradient, now=now, then=then)
        sparse = correct(
            correction, slots, values, now=now[rows], then=then[rows], rows=rows
        )
        found = np.zeros((5, 2), "float32")
        np.add.at(found, rows, sparse)
        np.testing.assert_allclose(found, dense, rtol=1e-5, atol=1e-6)
        if not lambda_0:
            np.testing.assert_array_equal(sparse, values)


def test_large_gradients_do_not_overflow():
    """1e25 squared is more than float32 holds."""
    for decay in (None, 0.0):
        correction = DelayCompensation(1e-28, decay)
        slots = make_slots(correction, [1])
        found = correct(correction, slots, [1e25], now=[1.0], then=[0.9])
        assert np.isfinite(found).all()


def test_defaults_are_those_of_the_paper():
    assert repr(DelayCompensation(backups="worker")) == (
        "DelayCompensation(lambda_0=2, variance_decay=0.95, epsilon=1e-07, "
        "backups='worker')"
    )
    constant = DelayCompensation(variance_decay=None)
    assert repr(constant) == (
        "DelayCompensation(lambda_0=0.04, variance_decay=None, epsilon=1e-07, "
        "backups='server')"
    )
    assert registry.settings("dc_asgd")["variance_decay"] == 0.95


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_default_compensates_whatever_the_size_of_gradients(scale):
    """Its share of the gradient does not depend on the loss's scale.

    A constant lambda's does: at 1e-3 it is below 1 part in 10,000.
    """
    gradient = [scale, -2.0 * scale]
    moved = {"now": [0.1, 0.1], "then": [0.0, 0.0]}

    def share(correction):
        slots = make_slots(correction, [2])
        for _ in range(200):  # Until the mean squares are those of `gradient`.
            found = correct(correction, slots, gradient, **moved)
        return np.abs(found / gradient - 1)

    # lambda_0 * |d|, as g^2 / sqrt(mean of g^2) is |g|.
    np.testing.assert_allclose(share(DelayCompensation()), 0.2, rtol=0.06)
    constant = share(DelayCompensation(variance_decay=None))
    np.testing.assert_allclose(
        constant, 0.04 * 0.1 * np.abs(gradient), rtol=0.05, atol=1e-6
    )


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"lambda_0": -1},
            "Argument `lambda_0` of DelayCompensation must be a number of "
            "at least 0 and finite. Received: lambda_0=-1",
        ),
        (
            {"lambda_0": True},
            "Argument `lambda_0` of DelayCompensation must be a number of "
            "at least 0 and finite. Received: lambda_0=True",
        ),
        (
            {"variance_decay": 1},
            "Argument `variance_decay` of DelayCompensation must be a number "
            "of at least 0 and less than 1. Received: variance_decay=1",
        ),
        (
            {"epsilon": 0},
            "Argument `epsilon` of DelayCompensation must be a number greater "
            "than 0 and finite. Received: epsilon=0",
        ),
        (
            {"backups": "nowhere"},
            "Argument `backups` of DelayCompensation must be one of "
            "server, worker. Received: backups='nowhere'",
        ),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError) as error:
        DelayCompensation(**kwargs)
    assert str(error.value) == message
