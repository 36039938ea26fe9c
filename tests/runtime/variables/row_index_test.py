"""The index of dynamic tables against a dictionary."""

import functools

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests import laws
from tests.runtime.variables.hashing_test import splitmix
from tfdist.runtime.variables import partitions as partitions_lib
from tfdist.runtime.variables import row_index

BUCKETS = 3
ROWS_EACH = BUCKETS * row_index.WAYS
PLACES = partitions_lib.Partitions(
    partitions_lib.PARTITIONS * ROWS_EACH, num_servers=3
)


def partitions_of(ids):
    """The partition of each id, by NumPy."""
    return (splitmix(ids) >> np.uint64(1)) % np.uint64(
        partitions_lib.PARTITIONS
    )


# More ids of one partition than it has rows.
_SOME = np.arange(-30_000, 30_000)
NEIGHBOURS = _SOME[partitions_of(_SOME) == partitions_of(_SOME[:1])].tolist()


EMPTY = tf.constant(row_index.EMPTY, tf.int64)


class Server:
    """The columns of a table on the first server that has its partition."""

    def __init__(self, admit_after=1, evict_after=None):
        self.index = row_index.RowIndex(PLACES, admit_after, evict_after)
        rows = partitions_lib.PARTITIONS * ROWS_EACH
        self.keys = tf.Variable(tf.fill([rows, 1], EMPTY))
        self.seen, self.asked = (
            tf.Variable(tf.zeros([rows, 1], tf.int64)) for _ in range(2)
        )
        asked = self.asked.handle if admit_after > 1 else None
        self._admit = tf.function(
            lambda ids, now: self.index.admit(
                ids, now, self.keys.handle, self.seen.handle, asked
            ),
            input_signature=[
                tf.TensorSpec([None], tf.int64),
                tf.TensorSpec([], tf.int64),
            ],
            autograph=False,
        )

    def clear(self):
        """Forgets all ids; returns itself."""
        self.keys.assign(tf.fill(self.keys.shape, EMPTY))
        for column in (self.seen, self.asked):
            column.assign(tf.zeros_like(column))
        return self

    def admit(self, ids, now):
        """Pushes gradients of ids; returns an `Admitted` of arrays."""
        admitted = self._admit(ids, now)
        return row_index.Admitted(*(x.numpy() for x in admitted))

    def find(self, ids):
        """Rows of ids, a list."""
        ids = tf.constant(ids, tf.int64)
        return self.index.find(ids, self.keys.handle).numpy().tolist()

    def candidates(self, id_):
        """The keys of the rows that an id may have."""
        rows = self.index._candidates(tf.constant([id_], tf.int64)).numpy()[0]
        return self.keys.numpy()[rows, 0]


@functools.cache
def _server(evict_after):
    return Server(evict_after=evict_after)


def cleared(evict_after):
    """A server without ids, traced once for all examples."""
    return _server(evict_after).clear()


def test_there_are_enough_neighbours():
    assert len(NEIGHBOURS) > 2 * ROWS_EACH


@pytest.mark.parametrize(
    ("capacity", "rows"),
    [(1, 32 * 1024), (19 * 1024, 48 * 1024), (10**6, 1728 * 1024)],
)
def test_tables_have_rows_for_their_ids(capacity, rows):
    assert row_index.rows_for(capacity) == rows


@pytest.mark.nightly
@pytest.mark.parametrize("capacity", [17 * 1024, 10_000, 19 * 1024, 30_000])
def test_no_id_is_refused_up_to_the_capacity(capacity):
    places = partitions_lib.Partitions(
        row_index.rows_for(capacity), num_servers=1
    )
    index = row_index.RowIndex(places, admit_after=1, evict_after=None)
    keys = tf.Variable(tf.fill([places.num_rows, 1], EMPTY))
    seen = tf.Variable(tf.zeros([places.num_rows, 1], tf.int64))
    ids = np.random.default_rng(1).integers(0, 2**62, capacity)
    for part in np.array_split(ids, 10):
        admitted = index.admit(
            tf.constant(part),
            tf.constant(0, tf.int64),
            keys.handle,
            seen.handle,
        )
        assert admitted.counts.numpy().tolist() == [len(part), 0, 0]


def test_ids_are_on_the_server_of_their_partition():
    ids = _SOME[:100]
    found = Server().index.place(tf.constant(ids, tf.int64))[0].numpy()
    np.testing.assert_array_equal(found, partitions_of(ids) % 3)
    assert set(found) == {0, 1, 2}


@laws.settings(25, nightly=1000)
@hypothesis.given(
    st.lists(
        st.lists(
            st.sampled_from(NEIGHBOURS), min_size=1, max_size=20, unique=True
        ),
        max_size=6,
    ),
    st.sampled_from([None, 1, 3]),
)
def test_each_id_has_a_row_of_its_own(pushes, evict_after):
    server, held, updated = cleared(evict_after), {}, {}
    for now, ids in enumerate(pushes):
        admitted = server.admit(ids, now)
        lost = []
        for id_, row, is_new in zip(
            ids, admitted.rows, admitted.is_new, strict=True
        ):
            assert is_new == (row >= 0 and held.get(id_) != row)
            if id_ in held:
                assert row == held[id_]
            if row < 0:
                # Others have all that it may have.
                assert row_index.EMPTY not in server.candidates(id_)
                continue
            before = [k for k, v in held.items() if v == row and k != id_]
            lost += before
            for other in before:
                assert other not in ids
                assert now - updated[other] > evict_after
                del held[other]
            held[id_], updated[id_] = row, now
        counts = admitted.is_new.sum(), len(lost), (admitted.rows < 0).sum()
        assert tuple(admitted.counts) == counts
        assert not lost or evict_after
    found = server.find(NEIGHBOURS)
    assert found == [held.get(id_, -1) for id_ in NEIGHBOURS]
    assert len(set(held.values())) == len(held)


def test_rows_are_of_the_ids_partition():
    server = Server()
    ids = _SOME[:300].tolist()
    rows = server.admit(ids, 0).rows
    _, first = PLACES.place_of(partitions_of(ids).astype(np.int64))
    assert np.all((rows >= first) & (rows < first + ROWS_EACH))


def test_full_partition_refuses_and_counts():
    server = Server()
    admitted = server.admit(NEIGHBOURS, 0)
    assert admitted.counts[1] == 0
    used = np.sum(server.keys.numpy() != row_index.EMPTY)
    assert admitted.counts.tolist() == [used, 0, len(NEIGHBOURS) - used]
    assert used == ROWS_EACH


def test_oldest_row_is_given_away():
    server = Server(evict_after=2)
    server.admit(NEIGHBOURS, 0)
    kept = [
        id_
        for id_, row in zip(NEIGHBOURS, server.find(NEIGHBOURS), strict=True)
        if row >= 0
    ]
    (late,) = [id_ for id_ in NEIGHBOURS if id_ not in kept][:1]
    (old,) = [id_ for id_ in kept if id_ in server.candidates(late)][:1]
    server.admit([id_ for id_ in kept if id_ != old], 1)
    assert server.admit([late], 2).counts.tolist() == [0, 0, 1]
    row = server.find([old])
    assert server.admit([late], 3).counts.tolist() == [1, 1, 0]
    assert server.find([late, old]) == [*row, -1]


def test_id_gets_a_row_with_its_third_update():
    server = Server(admit_after=3)
    one, two = NEIGHBOURS[0], int(_SOME[partitions_of(_SOME) == 9][0])
    for now, expected in enumerate([-1, -1, 0]):
        admitted = server.admit([one, two], now)
        assert np.all((admitted.rows >= 0) == (expected == 0))
        # Too early is not too many.
        assert admitted.counts.tolist() == [2 if expected == 0 else 0, 0, 0]
    assert server.admit([one, two], 3).counts.tolist() == [0, 0, 0]
