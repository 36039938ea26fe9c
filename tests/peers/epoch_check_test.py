"""Checksums of replicas: what they are, and what rounding makes of them."""

import types

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tfdist.peers import checksums
from tfdist.peers import epoch_check

SIZE = 2048
UPDATES = 500
EPSILON = 2.0**-23


@pytest.fixture(scope="module")
def training():
    """First values, updates and their sum in float32, and the signs."""
    rng = np.random.default_rng(0)
    first = rng.normal(0, 0.1, SIZE).astype(np.float32)
    updates = rng.normal(0, 1e-3, [UPDATES, SIZE]).astype(np.float32)
    last = first.copy()
    for update in updates:
        last -= update
    signs = checksums.signs(SIZE, tf.float64).numpy()
    return first, updates, last, signs


def test_signs_are_random_and_the_same_everywhere():
    signs = checksums.signs(SIZE, tf.float32).numpy()
    assert set(signs) == {-1.0, 1.0}
    assert abs(signs.sum()) < 5 * SIZE**0.5
    np.testing.assert_array_equal(signs, checksums.signs(SIZE, tf.float32))


def test_rounding_is_told_from_one_lost_update(training):
    first, updates, last, signs = training
    norm = np.linalg.norm(first.astype(np.float64))
    bound = epoch_check.rounding(EPSILON, UPDATES, norm)
    applied = last.astype(np.float64) @ signs + updates.sum(
        0, dtype=np.float64
    ) @ (signs)
    drift = applied - first.astype(np.float64) @ signs
    assert 0 < abs(drift) < bound
    assert all(
        abs(update.astype(np.float64) @ signs) > 2 * bound
        for update in updates[:5]
    )


@pytest.mark.parametrize(
    ("dtype", "factor"),
    # Small updates of half precision vanish one like the other.
    [("float32", 400**0.5), ("float16", 400), ("bfloat16", 400)],
)
def test_rounding_adds_up_as_it_does_in_that_precision(dtype, factor):
    epsilon = float(ml_dtypes.finfo(dtype).eps)
    one, many = (epoch_check.rounding(epsilon, n, 1.0) for n in (1, 400))
    assert many == pytest.approx(factor * one)


def test_differences_of_numbers_are_those_of_dead_processes():
    names, known = ["a", "b", "c"], [1, 2, 3]
    none = {"x": [0, 0, 0]}
    mine = {"seen": {"x": [5, 6, 7]}, "lost": [2], "known": known}
    theirs = {"seen": {"x": [4, 6, 9]}, "lost": [], "known": known}
    mine["earlier"] = theirs["earlier"] = none
    assert not epoch_check._difference(mine, theirs, names)
    theirs["lost"] = [2]
    found = epoch_check._difference(mine, theirs, names)
    assert found == "of the last updates of c it has 7 instead of 9"
    # One that was started again has other numbers.
    theirs = {**theirs, "known": [1, 2, 4], "earlier": {"x": [0, 0, 9]}}
    assert not epoch_check._difference(mine, theirs, names)
    mine = {**mine, "known": [1, 2, 4], "earlier": {"x": [0, 0, 7]}, "lost": []}
    assert "earlier processes of c it has 7 instead of 9" in (
        epoch_check._difference(mine, theirs, names)
    )


@pytest.mark.parametrize(
    ("holds", "records", "expected"),
    [
        # The lowest whose checksum holds: this one is worker 1.
        (True, {0: True, 2: True}, 0),
        (False, {0: True, 2: True}, 0),
        (True, {0: False, 2: True}, None),
        (False, {0: False, 2: True}, 2),
        (False, {0: None, 2: None}, None),
    ],
)
def test_the_lowest_worker_whose_checksum_holds_counts(
    holds, records, expected
):
    record = {"seen": {}, "lost": [], "known": [1, 2, 3]}

    def status_of(worker):
        if records[worker] is None:
            raise tf.errors.UnavailableError(None, None, "stopped")
        return {"epoch": {**record, "holds": records[worker]}}

    engine = types.SimpleNamespace(
        roster=types.SimpleNamespace(
            worker_id=1, live=[0, 2], names=["a", "b", "c"]
        ),
        collectives=types.SimpleNamespace(status_of=status_of),
    )
    check = epoch_check.EpochCheck(engine, None)
    found, _ = check._reference({**record, "holds": holds})
    assert found == expected
