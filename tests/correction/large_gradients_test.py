"""A gradient whose square is not finite is forgotten with time."""

import numpy as np
import pytest
import tensorflow as tf

from tests.correction.eager_server import late
from tests.correction.eager_server import make_slots
from tfdist import correction

CORRECTIONS = {
    "FASGD": correction.FASGD,
    "adaptive delay compensation": lambda: correction.DelayCompensation(
        variance_decay=0.95
    ),
    "gap aware": correction.GapAware,
}


@pytest.mark.parametrize("name", CORRECTIONS)
def test_averages_stay_finite(name):
    """And what is made of a gradient is bounded by the same numbers."""
    made = CORRECTIONS[name]()
    slots = make_slots(made, [2])
    for number in (1e30, 1.0):
        gradient = late(
            [number, -number], staleness=1, now=[1.0, 1.0], then=[0.5, 0.5]
        )
        corrected = made.correct(gradient, slots).numpy()
        assert np.isfinite(corrected).all()
        assert np.abs(corrected).max() <= 10 * abs(number)
        assert name != "FASGD" or np.abs(corrected).max() < 10
        step = tf.constant([number, -number])
        made.observe(tf.zeros([2]), step, tf.constant(1.0), slots)
    found = [slots.read(key).numpy() for key in made.slots([2], 1)]
    assert found
    for values in found:
        assert np.isfinite(values).all()
