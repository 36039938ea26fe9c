"""Gap-aware: golden values and what it measures.

Barkai et al. 2020 (papers.md 7).
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.correction.eager_server import late
from tests.correction.eager_server import make_slots
from tfdist.correction import GapAware


def observe(correction, slots, before, after, rate):
    correction.observe(
        tf.constant(before), tf.constant(after), tf.constant(rate), slots
    )


def test_first_gradient_is_passed_on():
    """There is no typical step to measure its delay by."""
    correction = GapAware()
    slots = make_slots(correction, [2])
    found = correction.correct(
        late([1.0, -2.0], now=[9.0, 9.0], then=[0.0, 0.0]), slots
    )
    np.testing.assert_array_equal(found, [1.0, -2.0])


def test_first_updates():
    """After one step of 2 the average is 0.001 * 4, / (1 - 0.999) = 4.

    So the typical step is 0.1 * 2 = 0.2, and a gradient whose parameter has
    moved by 0.6 since counts 1 / (1 + 3). After a second step, of 1, the
    average is (0.999 * 0.004 + 0.001) / (1 - 0.999^2).
    """
    correction = GapAware()
    slots = make_slots(correction, [1])
    observe(correction, slots, [1.0], [0.8], 0.1)
    found = correction.correct(late([8.0], now=[0.0], then=[0.6]), slots)
    np.testing.assert_allclose(found, [2.0], rtol=1e-4)
    observe(correction, slots, [1.0], [1.1], 0.1)
    size = np.sqrt((0.999 * 0.004 + 0.001) / (1 - 0.999**2))
    found = correction.correct(late([8.0], now=[0.0], then=[0.6]), slots)
    np.testing.assert_allclose(found, [8 / (1 + 6 / size)], rtol=1e-4)


def test_steps_are_measured_by_the_largest_rate():
    """eta_max of the paper: the same step at a tenth of the rate is as long."""
    correction = GapAware()
    slots = make_slots(correction, [1])
    observe(correction, slots, [1.0], [0.8], 0.1)
    observe(correction, slots, [1.0], [0.98], 0.01)
    found = correction.correct(late([8.0], now=[0.6], then=[0.0]), slots)
    np.testing.assert_allclose(found, [2.0], rtol=1e-3)


def test_parameters_that_never_moved_and_rates_of_zero():
    correction = GapAware()
    slots = make_slots(correction, [2])
    observe(correction, slots, [1.0, 1.0], [1.0, 1.0], 0.0)
    found = correction.correct(
        late([1.0, 2.0], now=[1.0, 1.0], then=[1.0, 1.0]), slots
    )
    np.testing.assert_array_equal(found, [1.0, 2.0])


def test_rows_are_divided_as_the_whole():
    correction = GapAware()
    slots = make_slots(correction, [4, 1])
    observe(correction, slots, [[1.0]] * 4, [[0.9], [0.8], [0.7], [0.6]], 0.1)
    now = np.array([[1.0], [2.0], [3.0], [4.0]], "float32")
    whole = correction.correct(
        late(np.ones((4, 1)), now=now, then=np.zeros((4, 1))), slots
    ).numpy()
    rows = [2, 0, 2]
    found = correction.correct(
        late(np.ones((3, 1)), now=now[rows], then=np.zeros((3, 1)), rows=rows),
        slots,
    )
    np.testing.assert_allclose(found, whole[rows], rtol=1e-6)


def test_bad_arguments_and_repr():
    assert repr(GapAware(backups="worker")) == "GapAware(backups='worker')"
    with pytest.raises(
        ValueError,
        match=r"`backups` of GapAware must .*" r"Received: backups=3",
    ):
        GapAware(backups=3)
