"""PowerSGD against NumPy."""

import numpy as np
import tensorflow as tf

from tests.compression import runs
from tfdist.compression import PowerSGD

# 32 columns; the last row is not full.
ROWS, COLUMNS = 35, 32
SIZE = ROWS * COLUMNS - 5


def as_matrix(vector):
    return np.pad(vector, (0, 5)).reshape(ROWS, COLUMNS)


def test_messages_are_one_step_of_power_iteration_each():
    """In float64: QR is unique but for signs, which the product does not see.

    Sums are in another order, so not to the bit.
    """
    run = runs.Run(PowerSGD(3), SIZE, tf.float64)
    residual, factor = np.zeros(SIZE), run.state_of("factor")
    assert factor.shape == (COLUMNS, 3)
    for vector in runs.vectors(SIZE, 4, dtype=np.float64):
        total = residual + vector
        left, _ = np.linalg.qr(as_matrix(total) @ factor)
        factor = as_matrix(total).T @ left
        sent = (left @ factor.T).reshape(-1)[:SIZE]
        residual = total - sent
        before = run.state_of("residual")
        message = run.encode(vector)
        decoded = run.decode(message)
        np.testing.assert_allclose(decoded, sent, atol=1e-9)
        runs.same(run.state_of("residual"), before + vector - decoded)
        assert int(run.codec.bytes(message)) == 4 + 8 * 3 * (ROWS + COLUMNS)


def test_a_matrix_of_that_rank_is_sent_as_it_is():
    rng = np.random.default_rng(0)
    low = rng.normal(size=(ROWS, 2)) @ rng.normal(size=(2, COLUMNS))
    vector = np.pad(low.reshape(-1)[:SIZE], (0, 5))
    vector[-COLUMNS:] = 0
    run = runs.Run(PowerSGD(2), SIZE, tf.float64)
    np.testing.assert_allclose(
        run.send(vector[:SIZE]), vector[:SIZE], atol=1e-9
    )


def test_a_zero_is_no_end():
    run = runs.Run(PowerSGD(2), SIZE)
    assert not run.send(np.zeros(SIZE)).any()
    (vector,) = runs.vectors(SIZE, 1)
    assert sum(np.abs(run.send(vector)).sum() for _ in range(3)) > 0


def test_a_zero_is_no_end_where_the_first_rows_are_zeros():
    """The factors of a zero are unit vectors, which see these rows alone."""
    run = runs.Run(PowerSGD(2, dense_below=0), 1024)
    (vector,) = runs.vectors(1024, 1)
    vector.reshape(32, 32)[:2] = 0.0
    run.send(np.zeros(1024))
    assert sum(np.abs(run.send(vector)).sum() for _ in range(3)) > 0


def test_factors_that_are_no_smaller_are_not_made():
    codec = PowerSGD(64, dense_below=0)
    assert codec.state(1024) == {}
