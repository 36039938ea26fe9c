"""Sums of tables: as rows and as a whole they are the same bits."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests import laws
from tests import nightly
from tfdist.all_reduce import rows

WORKERS = 3
ROWS = 7
WIDTH = 2


class Recorded:
    """Collectives of one worker, of which each has the others' parts.

    Attributes:
        brought: what the worker under way has brought.
        there: of all workers; None while they are being recorded.
    """

    num_workers = WORKERS
    device = "/device:CPU:1"

    def __init__(self):
        self.brought = []
        self.there = None

    def gather_rows(self, matrix, power, name, piece):
        """All workers' rows, or as many of one's own."""
        del power, name, piece
        self.brought.append(matrix)
        if self.there is None:
            return tf.concat([matrix] * WORKERS, 0)
        return tf.concat([one[len(self.brought) - 1] for one in self.there], 0)

    def sum(self, vector, name, piece):
        """The sum of all workers' vectors, in their order."""
        del name, piece
        self.brought.append(vector)
        if self.there is None:
            return vector
        return tf.add_n([one[len(self.brought) - 1] for one in self.there])


def totals(slices, dense_bytes):
    """The sum that each worker sees, and the bytes that it sends."""
    recorded = Recorded()
    spec = tf.TensorSpec([ROWS, WIDTH], slices[0].values.dtype)
    table = rows.TableSum(recorded, spec, "table")
    table._dense_bytes = dense_bytes
    mine = [table.of(one) for one in slices]
    most = tf.constant(max(one.ids.shape[0] for one in mine))
    everything, found = [], []
    for one in mine:
        recorded.brought = []
        table.build(one, most)
        everything.append(recorded.brought)
    recorded.there = everything
    for one in mine:
        recorded.brought = []
        total, sent = table.build(one, most)
        found.append((total.numpy(), float(sent)))
    return found


def same(found):
    """What all workers have found, which must be the same."""
    for total, sent in found[1:]:
        np.testing.assert_array_equal(total, found[0][0])
        assert sent == found[0][1]
    return found[0]


@pytest.mark.parametrize("dtype", nightly.also(["float32"], ["float64"]))
@laws.settings(max_examples=20)
@hypothesis.given(data=st.data())
def test_rows_and_tables_add_up_to_the_same_bits(dtype, data):
    # TensorFlow takes numbers next to zero for zero.
    floats = st.floats(1.0, 1e3, width=32).flatmap(
        lambda x: st.sampled_from([x, -x])
    )
    slices, right = [], np.zeros([ROWS, WIDTH], dtype)
    for _ in range(WORKERS):
        ids = data.draw(st.lists(st.integers(0, ROWS - 1), max_size=9))
        values = data.draw(
            st.lists(
                st.tuples(floats, floats), min_size=len(ids), max_size=len(ids)
            )
        )
        values = np.array(values, dtype).reshape([-1, WIDTH])
        slices.append(
            tf.IndexedSlices(tf.constant(values), tf.constant(ids, tf.int64))
        )
        mine = np.zeros_like(right)
        np.add.at(mine, ids, values)
        right = right + mine
    as_rows, few = same(totals(slices, dense_bytes=1e9))
    as_table, many = same(totals(slices, dense_bytes=1.0))
    np.testing.assert_array_equal(as_rows, right)
    np.testing.assert_array_equal(as_table, right)
    most = max(len(set(one.indices.numpy().tolist())) for one in slices)
    capacity = 1
    while capacity < most:
        capacity *= 2
    row = (WIDTH + 1) * np.dtype(dtype).itemsize
    assert (few, many) == ((WORKERS - 1) * capacity * row, 1.0)


def test_rows_of_all_workers_are_added_up_on_the_processor():
    """GPUs add up in an order of chance."""
    table = rows.TableSum(
        Recorded(), tf.TensorSpec([ROWS, WIDTH], tf.float32), "table"
    )

    @tf.function
    def add(values, ids):
        return table._by_rows(rows.Rows(values, ids), 0, 1)

    graph = add.get_concrete_function(
        tf.TensorSpec([1, WIDTH]), tf.TensorSpec([1], tf.int32)
    ).graph
    places = [
        operation.device
        for operation in graph.get_operations()
        if operation.type == "UnsortedSegmentSum"
    ]
    assert places == [Recorded.device]


def test_small_tables_travel_dense():
    slices = tf.IndexedSlices(tf.zeros([1, 4]), tf.constant([0]))
    small = tf.Variable(tf.zeros([1000, 4]))
    large = tf.Variable(tf.zeros([70_000, 4]))
    assert not rows.are_worth_it(slices, small)
    assert rows.are_worth_it(slices, large)
    assert not rows.are_worth_it(tf.zeros([70_000, 4]), large)
