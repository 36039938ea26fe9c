"""Sums of portions, in the order of portions."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.sandblaster import functions
from tfdist.sandblaster import deposits

_names = itertools.count()


def make(number, length, dtype="float32"):
    shards = functions.make_shards(np.zeros(length), number, 1, dtype)
    made = deposits.Deposits(
        shards, f"deposits_test/{next(_names)}", shards.devices[0]
    )
    made.clear()
    return shards, made


def keep(made, ticket, gradient, *totals):
    made.keep(ticket, tf.constant(gradient), tf.constant(totals, tf.float64))


def test_what_is_added_counts_and_nothing_else():
    shards, made = make(3, 4)
    gradients = np.arange(16, dtype=np.float32).reshape(4, 4)
    for ticket, gradient in enumerate(gradients):
        keep(made, ticket, gradient, ticket, 10.0)
    rows = [*made.add([3]), *made.add([0, 2])]
    np.testing.assert_array_equal(rows, [[3, 10], [0, 10], [2, 10]])
    made.finish("mean", 2.0)
    np.testing.assert_array_equal(
        shards.fetch("mean"), gradients[[3, 0, 2]].sum(0) / 2
    )


def test_a_sum_begins_at_0_without_deposits_of_before():
    shards, made = make(2, 3)
    keep(made, 1, np.ones(3, np.float32), 1.0)
    keep(made, 2, np.ones(3, np.float32), 1.0)
    made.add([1])
    made.clear()
    # The same ticket holds something else now.
    keep(made, 2, np.full(3, 5, np.float32), 7.0)
    np.testing.assert_array_equal(made.add([2]), [[7.0]])
    made.finish("mean", 1.0)
    np.testing.assert_array_equal(shards.fetch("mean"), np.full(3, 5.0))


@pytest.mark.nightly
def test_the_sum_is_the_same_to_the_bit_in_whatever_order_they_come():
    random = np.random.default_rng(0)
    gradients = random.normal(size=(6, 50)) * 10.0 ** np.arange(6)[:, None]
    sums = []
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 4, 0, 2, 1]):
        shards, made = make(2, 50, "float64")
        for ticket in order:
            keep(made, ticket, gradients[ticket])
        # They are added as soon as all before them are there.
        for tickets in ([0, 1], [2, 3, 4, 5]) if order[0] else ([*range(6)],):
            made.add(tickets)
        made.finish("sum", 1.0)
        sums.append(shards.fetch("sum").numpy())
    np.testing.assert_array_equal(*sums)
    other = np.sum(gradients[[5, 3, 4, 0, 2, 1]], 0)
    assert np.any(other != sums[0])


def test_small_gradients_are_not_lost_beside_large_ones():
    """In float32 1 + 2**-25 is 1."""
    shards, made = make(1, 1)
    for ticket, value in enumerate([1.0, *[2.0**-25] * 8]):
        keep(made, ticket, np.array([value], np.float32))
    made.add(list(range(9)))
    made.finish("sum", 1.0)
    assert shards.fetch("sum").numpy() == 1 + 2.0**-22
