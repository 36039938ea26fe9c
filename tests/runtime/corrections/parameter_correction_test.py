"""What a correction is given of a parameter, wherever it runs."""

import numpy as np
import tensorflow as tf

from tests.correction.eager_server import make_slots
from tfdist.correction import Correction
from tfdist.runtime.corrections.parameter_correction import ParameterCorrection

ROWS = tf.constant([2, 0], tf.int64)


class Noting(Correction):
    """Adds what it was told to what it is given."""

    observes = uses_lookahead = True

    def __init__(self, densifies=False):
        self.densifies = densifies
        self.late = self.update = None

    def correct(self, late, slots):
        self.late = late
        if self.densifies:
            return tf.scatter_nd(late.indices[:, None], late.values, [3, 1])
        return late.values + 1

    def observe(self, before, after, rate, slots):
        self.update = [float(value) for value in (before, after, rate)]

    def look_ahead(self, parameter, slots):
        assert parameter.dtype == tf.float32
        return parameter + 1


def of(correction, read=None):
    return ParameterCorrection(correction, make_slots(correction, []), read)


def test_half_precision_is_seen_as_float32_and_stays_half():
    noting = Noting()
    half = tf.constant([1.0], tf.float16)
    one = of(noting, lambda rows: 2 * half)
    corrected = one.correct(
        half, staleness=tf.constant(3), worker=tf.constant(1), pulled=half
    )
    assert corrected.dtype == one.look_ahead(half).dtype == tf.float16
    seen = noting.late.values, noting.late.parameter, noting.late.pulled
    assert {value.dtype for value in seen} == {tf.float32}
    np.testing.assert_array_equal(noting.late.delay, [1.0])


def test_on_a_worker_nothing_is_late_and_nothing_is_read():
    noting = Noting()
    of(noting).correct(tf.ones([1]))
    assert int(noting.late.staleness) == int(noting.late.worker) == 0
    assert noting.late.parameter is noting.late.pulled is None


def test_rows_stay_rows_where_a_sparse_gradient_becomes_dense():
    gradient = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), ROWS)
    kept = of(Noting()).correct(gradient)
    np.testing.assert_array_equal(kept.values, [[2.0], [3.0]])
    np.testing.assert_array_equal(kept.indices, ROWS)
    dense = of(Noting(densifies=True))
    whole = dense.correct(gradient)
    np.testing.assert_array_equal(whole, [[2.0], [0.0], [1.0]])
    rows = dense.correct(gradient, shape=tf.TensorShape([3, 1]))
    np.testing.assert_array_equal(rows.values, whole)
    np.testing.assert_array_equal(rows.indices, [0, 1, 2])
    assert rows.indices.dtype == ROWS.dtype


def test_an_update_is_observed_from_before_to_after():
    noting = Noting()
    values = [5.0]
    one = of(noting, lambda rows: tf.constant(values[0]))
    with one.observed(lambda: tf.constant(0.5)):
        values[0] = 4.0
        assert noting.update is None
    assert noting.update == [5.0, 4.0, 0.5]
