"""The two-loop recursion on scalars, against the one on vectors."""

import json

from hypothesis import given
from hypothesis import strategies as st
import numpy as np

from tests import laws
from tests.sandblaster import functions
from tfdist.sandblaster import pair_memory


def filled(matrix, pairs):
    """A memory of pairs, the rows of `matrix` written as on shards."""
    memory = pair_memory.PairMemory(len(matrix) // 2 - 1)
    for s, y in pairs:
        slot = memory.free_slot
        rows = memory.rows_of(slot)
        matrix[list(rows)] = s, y
        memory.add(slot, matrix @ s, matrix @ y)
    return memory


@laws.settings(40, deadline=None)
@given(st.integers(1, 6), st.integers(0, 13), st.integers(0, 2**31))
def test_the_direction_is_that_of_the_two_loop_recursion(size, number, seed):
    random = np.random.default_rng(seed)
    n = 20
    root = random.normal(size=(n, n))
    hessian = root @ root.T + np.eye(n)
    steps = random.normal(size=(number, n))
    pairs = [(s, hessian @ s) for s in steps]
    # What rows hold before they are used is no matter.
    matrix = random.normal(size=(pair_memory.rows(size), n))
    memory = filled(matrix, pairs)
    gradient = random.normal(size=n)
    of_rows, of_gradient = memory.coefficients(matrix @ gradient)
    direction = of_rows @ matrix + of_gradient * gradient
    expected = functions.two_loop(pairs[-size:], gradient)
    np.testing.assert_allclose(
        direction, expected, atol=1e-10 * np.abs(expected).max()
    )


def test_the_oldest_pair_makes_room_when_the_newest_is_there():
    matrix = np.zeros((6, 3))
    memory = filled(matrix, [(np.ones(3) * k, np.ones(3)) for k in (1, 2, 3)])
    assert memory.slots == [1, 2]
    # Whoever is interrupted before the third is added has the first.
    assert [row[0] for row in matrix] == [1, 2, 3, 1, 1, 1]
    assert memory.free_slot == 0


def test_a_memory_that_was_saved_is_the_same():
    random = np.random.default_rng(0)
    vectors = np.abs(random.normal(size=(3, 2, 5)))
    matrix = np.zeros((6, 5))
    memory = filled(matrix, vectors)
    other = pair_memory.PairMemory(2)
    other.restore(json.loads(json.dumps(memory.state())))
    products = matrix @ random.normal(size=5)
    np.testing.assert_array_equal(
        other.coefficients(products)[0], memory.coefficients(products)[0]
    )
