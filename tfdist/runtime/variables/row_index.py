"""The index of a dynamic table: an id has a row in one of two buckets of eight.

An id hashes to a partition, and within it to two buckets. It has at most one
of their 16 rows, beside which its key lies. So the index is as large as the
table from the beginning: nothing is ever rehashed, and its columns are saved
and moved to another number of servers as rows are.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from tfdist.runtime.variables import hashing
from tfdist.runtime.variables import partitions as partitions_lib

WAYS = 8
"""Rows of a bucket."""

EMPTY = -(2**63)
"""Key of a row that no id has."""

_LOAD = 0.6
# Ids of a partition vary in number: standard deviations that have room besides.
_DEVIATIONS = 3.0
# With fewer, the two buckets of many ids are the same one.
_LEAST_BUCKETS = 4
_BITS = 10
_SECOND = 37
_SALT_OF_COUNTS = 7
# Numbers in the place of a row: none yet; both buckets are full; too early.
_OPEN, _REFUSED, _EARLY = -1, -2, -3
_FREE = 2**62


def rows_for(capacity):
    """Returns the rows of a table that has room for `capacity` ids.

    At a load of 0.6 both buckets of an id are practically never full, nor in
    the partition that has most ids.

    Args:
      capacity: int.
    """
    ids = -(-capacity // partitions_lib.PARTITIONS)
    rows = ids / _LOAD + _DEVIATIONS * math.sqrt(ids)
    buckets = max(_LEAST_BUCKETS, math.ceil(rows / WAYS))
    return partitions_lib.PARTITIONS * buckets * WAYS


class Admitted(NamedTuple):
    """The fate of ids; all int64 but `is_new`.

    Attributes:
      rows: `(n,)`, their rows on the server; negative for none.
      is_new: `(n,)` bool, whether the row was another id's or nobody's.
      counts: `(3,)`: ids that got a row, that lost theirs, and that were
        refused because their buckets are full.
    """

    rows: tf.Tensor
    is_new: tf.Tensor
    counts: tf.Tensor


class RowIndex:
    """The index of one dynamic table; builds operations on one server.

    Args:
      partitions: The table's `Partitions`.
      admit_after: Updates with an id before it gets a row, about: ids that
        hash alike are counted together.
      evict_after: Updates of a server without an id after which its row may
        become another's; None for never.
    """

    def __init__(self, partitions, admit_after, evict_after):
        self._partitions = partitions
        self._buckets = partitions.rows_each // WAYS
        self._admit_after = admit_after
        self._evict_after = evict_after

    @property
    def num_servers(self):
        """Number of servers, an int."""
        return self._partitions.num_servers

    def place(self, ids):
        """Returns the number of each id's server, and what it is asked for.

        That is the id, of which the server finds the row.

        Args:
          ids: int64 `(n,)`.

        Returns:
          Both int64 `(n,)`.
        """
        return self._partition(ids) % self.num_servers, ids

    def _partition(self, ids):
        return hashing.below(hashing.mix(ids), partitions_lib.PARTITIONS)

    def _candidates(self, ids):
        """Rows that ids may have, int64 `(n, 16)`."""
        _, first = self._partitions.place_of(self._partition(ids))
        bits = hashing.mix(ids, 1)
        buckets = tf.stack(
            [
                hashing.below(hashing.right_shift(bits, shift), self._buckets)
                for shift in (_BITS, _SECOND)
            ],
            1,
        )
        ways = tf.range(WAYS, dtype=tf.int64)
        rows = first[:, None, None] + buckets[:, :, None] * WAYS + ways
        return tf.reshape(rows, [-1, 2 * WAYS])

    def find(self, ids, keys):
        """Builds a search.

        Args:
          ids: int64 `(n,)`.
          keys: Handle of the keys on the server.

        Returns:
          Their rows on the server, int64 `(n,)`; -1 for none.
        """
        candidates = self._candidates(ids)
        has = tf.equal(_gather(keys, candidates), ids[:, None])
        place = tf.argmax(has, 1)
        row = tf.gather(candidates, place, batch_dims=1)
        return tf.where(tf.reduce_any(has, 1), row, _OPEN)

    def admit(self, ids, now, keys, seen, asked=None):
        """Builds rows for ids that have a gradient, under the server's lock.

        Args:
          ids: int64 `(n,)`, each once.
          now: Updates of the server so far, scalar int64.
          keys: Handle of the keys on the server.
          seen: Handle of `now` at the last update of each row.
          asked: Handle of the numbers of updates with ids that have no row;
            None if every id gets one at once.

        Returns:
          An `Admitted`.
        """
        known = self.find(ids, keys)
        rows = known
        if asked is not None:
            rows = self._not_before_time(ids, rows, asked)
        # So that nobody takes a row that is needed here.
        with tf.control_dependencies([_note(seen, known, now)]):
            rows = tf.identity(rows)
        rows, evicted = tf.while_loop(
            lambda rows, _: tf.reduce_any(tf.equal(rows, _OPEN)),
            lambda rows, evicted: self._round(
                ids, rows, evicted, now, keys, seen
            ),
            [rows, tf.zeros([], tf.int64)],
            parallel_iterations=1,
        )
        is_new = (known < 0) & (rows >= 0)
        counts = [
            tf.math.count_nonzero(is_new),
            evicted,
            tf.math.count_nonzero(tf.equal(rows, _REFUSED)),
        ]
        return Admitted(rows, is_new, tf.stack(counts))

    def _not_before_time(self, ids, rows, asked):
        """Those that are not yet to have a row are marked."""
        _, first = self._partitions.place_of(self._partition(ids))
        bits = hashing.mix(ids, _SALT_OF_COUNTS)
        place = first + hashing.below(bits, self._partitions.rows_each)
        unknown = tf.cast(rows < 0, tf.int64)
        add = tf.raw_ops.ResourceScatterAdd(
            resource=asked, indices=place, updates=unknown[:, None]
        )
        with tf.control_dependencies([add]):
            often = _gather(asked, place) >= self._admit_after
        early = tf.constant(_EARLY, tf.int64)
        return tf.where((rows < 0) & ~often, early, rows)

    def _round(self, ids, rows, evicted, now, keys, seen):
        """Each open id asks for a row; the first one that asks gets it."""
        places = tf.where(tf.equal(rows, _OPEN))[:, 0]
        ids = tf.gather(ids, places)
        candidates = self._candidates(ids)
        free = tf.equal(_gather(keys, candidates), EMPTY)
        in_bucket = tf.reduce_sum(
            tf.cast(tf.reshape(free, [-1, 2, WAYS]), tf.int64), 2
        )
        # Of the emptier bucket.
        score = tf.where(
            free, _FREE + tf.repeat(in_bucket, WAYS, axis=1), _OPEN
        )
        if self._evict_after is not None:
            age = now - _gather(seen, candidates)
            is_old = ~free & (age > self._evict_after)
            score = tf.where(is_old, age, score)
        best = tf.argmax(score, 1)
        score = tf.reduce_max(score, 1)
        wanted = tf.gather(candidates, best, batch_dims=1)
        asking = tf.where(score > 0)[:, 0]
        targets, of = tf.unique(tf.gather(wanted, asking))
        first = tf.math.unsorted_segment_min(asking, of, tf.size(targets))
        put = tf.raw_ops.ResourceScatterUpdate(
            resource=keys,
            indices=targets,
            updates=tf.gather(ids, first)[:, None],
        )
        with tf.control_dependencies([put, _note(seen, targets, now)]):
            rows = tf.tensor_scatter_nd_update(
                rows, tf.gather(places, first)[:, None], targets
            )
        full = tf.gather(places, tf.where(score <= 0)[:, 0])
        rows = tf.tensor_scatter_nd_update(
            rows,
            full[:, None],
            tf.fill(tf.shape(full), tf.constant(_REFUSED, tf.int64)),
        )
        taken = tf.gather(score, first) < _FREE
        return rows, evicted + tf.math.count_nonzero(taken)


def _gather(column, rows):
    """Values of a column of int64 at some rows, of the rows' shape."""
    values = tf.raw_ops.ResourceGather(
        resource=column, indices=tf.reshape(rows, [-1]), dtype=tf.int64
    )
    return tf.reshape(values, tf.shape(rows))


def _note(seen, rows, now):
    """Builds: those rows that there are were seen now."""
    rows = tf.boolean_mask(rows, rows >= 0)
    return tf.raw_ops.ResourceScatterUpdate(
        resource=seen,
        indices=rows,
        updates=tf.fill(tf.stack([tf.size(rows), 1]), now),
    )
