"""Commands on vectors that are cut over shards, against NumPy."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from tests import laws
from tests.sandblaster import functions
from tfdist.sandblaster import commands
from tfdist.sandblaster import minimizer
from tfdist.sandblaster import shards

ROWS = minimizer.HISTORY


def loaded(number, vectors, dtype="float64"):
    """Shards with vectors, a dict of name to array, and two pairs of rows."""
    (length,) = {len(vector) for vector in vectors.values()}
    made = functions.make_shards(np.zeros(length), number, 2, dtype)
    for name, vector in vectors.items():
        made.load(name, tf.constant(vector, dtype))
    return made


@laws.settings(50, deadline=None)
@given(st.integers(0, 100), st.integers(1, 9))
def test_each_element_is_on_one_shard_and_no_shard_has_two_more(number, k):
    sizes = shards.cut(number, k)
    assert sum(sizes) == number
    assert max(sizes) - min(sizes) <= 1


def test_every_command_does_what_numpy_does():
    random = np.random.default_rng(4)
    a, b = random.normal(size=(2, 7))
    made = loaded(4, {"a": a, "b": b})
    results = made.run(
        [
            commands.Dot("a", "b"),
            commands.Norm("a"),
            commands.MaxNorm("b"),
            commands.Copy("d", "a"),
            commands.Scale("d", 3.0),
            commands.Axpy("d", -0.5, "b"),
            commands.SetRow(ROWS, 2, "d"),
            commands.RowDots(ROWS, ("a", "b")),
            commands.Combine("e", ROWS, [0.0, 0.0, 2.0, 0.0, 0.0, 0.0]),
        ]
    )
    d = 3 * a - 0.5 * b
    np.testing.assert_allclose(results[0], a @ b)
    np.testing.assert_allclose(results[1], np.linalg.norm(a))
    assert results[2] == np.abs(b).max()
    np.testing.assert_allclose(
        results[3], [[0, 0, d @ a, 0, 0, 0], [0, 0, d @ b, 0, 0, 0]]
    )
    np.testing.assert_allclose(made.fetch("d"), d)
    np.testing.assert_allclose(made.fetch("e"), 2 * d)
    np.testing.assert_array_equal(made.fetch("a"), a)


def test_commands_of_a_batch_see_those_before_them():
    made = loaded(2, {"a": np.ones(3)})
    results = made.run(
        [
            commands.Scale("a", 2.0),
            commands.Norm("a"),
            commands.Scale("a", 2.0),
            commands.Norm("a"),
        ]
    )
    np.testing.assert_allclose(results, [12**0.5, 48**0.5])


def test_a_program_is_traced_once_for_all_numbers():
    made = loaded(2, {"a": np.ones(3)})
    traced = []

    class Noted(commands.Scale):
        def build(self, piece, numbers):
            traced.append(piece)
            super().build(piece, numbers)

    for factor in (2.0, 3.0, 4.0):
        made.run([Noted("a", factor)])
    np.testing.assert_array_equal(made.fetch("a"), np.full(3, 24.0))
    assert len(traced) == 2


def test_dots_of_float32_are_summed_in_float64():
    vector = np.full(2**16, 0.1, np.float32)
    vector[0] = 4096.0
    made = loaded(1, {"a": vector}, "float32")
    exact = np.sum(vector.astype(np.float64) ** 2)
    in_float32 = np.cumsum(vector**2, dtype=np.float32)[-1]
    assert abs(in_float32 - exact) > 10
    np.testing.assert_allclose(
        made.run([commands.Dot("a", "a")]), [exact], rtol=1e-13
    )


def test_rows_without_a_coefficient_may_hold_anything():
    made = loaded(1, {"a": np.array([np.nan, 1.0])})
    made.run([commands.SetRow(ROWS, 1, "a")])
    made.run([commands.Combine("b", ROWS, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0])])
    np.testing.assert_array_equal(made.fetch("b"), np.zeros(2))


def test_who_has_the_same_names_has_the_same_vectors():
    made = loaded(3, {"a": np.arange(5.0)})
    other = shards.Shards(
        made.namespace,
        5,
        "float64",
        made.devices,
        made.devices[0],
        {},
        made.fence,
    )
    np.testing.assert_array_equal(other.fetch("a"), np.arange(5.0))
