"""FASGD: golden values, which way it divides, refusals.

Odena 2016 (papers.md 5).
"""

import keras
import numpy as np
import pytest

from tests.correction.eager_server import late
from tests.correction.eager_server import make_slots
from tfdist.correction import FASGD


def run(correction, gradients, **kwargs):
    slots = make_slots(correction, np.shape(gradients[0]))
    return [
        correction.correct(late(g, **kwargs), slots).numpy() for g in gradients
    ]


def test_first_updates_as_in_the_paper():
    """Gamma = beta = 1/2, no epsilon to speak of; by hand.

    g = 4: n = 8, b = 2, std = 2, sigma = 1: 4 / 1.
    g = 2: n = 6, b = 2, std = sqrt(2), sigma = 1/2 + sqrt(2)/2.
    """
    correction = FASGD(0.5, 0.5, epsilon=1e-12, bias_correction=False)
    first, second = run(correction, [[4.0], [2.0]])
    np.testing.assert_allclose(first, [4.0], rtol=1e-5)
    np.testing.assert_allclose(second, [2 / (0.5 + 0.5**0.5)], rtol=1e-5)


def test_bias_correction_divides_by_the_weights():
    """The same with sigma / (1 - 1/2) and sigma / (1 - 1/4)."""
    first, second = run(FASGD(0.5, 0.5, epsilon=1e-12), [[4.0], [2.0]])
    np.testing.assert_allclose(first, [2.0], rtol=1e-5)
    np.testing.assert_allclose(second, [1.5 / (0.5 + 0.5**0.5)], rtol=1e-5)


def test_first_updates_by_the_mean():
    """|g| = 4, 2: sigma = 2, 2 without bias correction; epsilon = 0.5."""
    correction = FASGD(
        beta=0.5, epsilon=0.5, estimator="absmean", bias_correction=False
    )
    found = run(correction, [[-4.0], [2.0]])
    np.testing.assert_allclose(found, [[-4 / 2.5], [2 / 2.5]], rtol=1e-6)


@pytest.mark.parametrize("estimator", ["std", "absmean"])
def test_elements_whose_gradients_spread_get_smaller_rates(estimator):
    """The text of the paper, against its printed formula."""
    random = np.random.default_rng(0)
    gradients = random.normal(size=(50, 2)) * [10.0, 0.1]
    found = run(FASGD(estimator=estimator), gradients)
    rates = (np.array(found) / gradients)[-1]
    # A hundred times the spread: about a hundredth of the rate.
    assert 30 < rates[1] / rates[0] < 300


@pytest.mark.parametrize(("staleness", "tau"), [(0, 1), (1, 1), (2, 2), (5, 5)])
def test_late_gradients_count_less(staleness, tau):
    gradients = [[3.0], [-1.0]]
    late_ones = run(FASGD(), gradients, staleness=staleness)
    for found, fresh in zip(late_ones, run(FASGD(), gradients), strict=True):
        np.testing.assert_allclose(found, fresh / tau, rtol=1e-6)


@pytest.mark.nightly
def test_constant_gradients_are_bounded():
    """Rounding makes n - b^2 negative; sigma is at least 0.001."""
    found = run(FASGD(), [[0.1, 1e-5]] * 200)
    assert np.isfinite(found).all()
    np.testing.assert_array_less(found, [[100.0 * 1.01, 0.0101]] * 200)


def test_rows_are_averaged_when_they_come():
    """Each row as a parameter of its own that gets only its gradients."""
    correction = FASGD()
    slots = make_slots(correction, [3, 2])
    alone = {row: make_slots(correction, [1, 2]) for row in range(3)}
    random = np.random.default_rng(1)
    for rows in ([0, 2], [2, 2], [1, 2], [0, 0]):
        values = random.normal(size=(2, 2)).astype("float32")
        found = correction.correct(late(values, rows=rows), slots).numpy()
        for row in set(rows):
            mine = np.equal(rows, row)
            total = values[mine].sum(0, keepdims=True)
            wanted = correction.correct(late(total), alone[row])
            np.testing.assert_allclose(
                found[mine].sum(0, keepdims=True), wanted, rtol=1e-4
            )


def test_takes_sgd_alone():
    FASGD().check_optimizer(keras.optimizers.SGD(momentum=0.9))
    with pytest.raises(ValueError) as error:
        FASGD().check_optimizer(keras.optimizers.Adam())
    assert str(error.value) == (
        "Argument `optimizer` must be a keras.optimizers.SGD with FASGD, "
        "because it chooses the rate of each element itself. Received: "
        "optimizer=Adam"
    )


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"gamma": 1},
            "`gamma` of FASGD must be .* less than 1. Received: gamma=1",
        ),
        (
            {"beta": -0.1},
            "`beta` of FASGD must be .* at least 0 .*Received: beta=-0.1",
        ),
        ({"epsilon": 0.0}, "`epsilon` of FASGD must be .* greater than 0 "),
        ({"estimator": "var"}, "'std' or 'absmean'. .* estimator='var'"),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        FASGD(**kwargs)


def test_repr_tells_settings_apart():
    assert repr(FASGD()) == (
        "FASGD(gamma=0.9, beta=0.9, epsilon=1e-06, estimator='std', "
        "bias_correction=True)"
    )
    assert "epsilon=0.001, estimator='absmean'" in repr(
        FASGD(estimator="absmean")
    )
