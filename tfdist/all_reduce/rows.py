"""Sums of embeddings' gradients, which travel as rows where that is less."""

import math

import tensorflow as tf

from tfdist.all_reduce import pieces
from tfdist.cluster import collective_sums

# Smaller tables travel dense: asking all workers for their number of rows
# would take as long.
FROM_BYTES = 1 << 20


class Rows:
    """The distinct rows that one worker's gradient of a table has.

    Attributes:
      values: `(rows, width)`, a row for each of `ids`.
      ids: `(rows,)`, numbers of the table's rows: int32, or int64 if `values`
        are float64.
    """

    def __init__(self, values, ids):
        self.values = values
        self.ids = ids


def are_worth_it(gradient, variable):
    """Whether a gradient may travel as rows.

    Args:
      gradient: A tensor or `tf.IndexedSlices`.
      variable: The TensorFlow variable.
    """
    num_bytes = variable.shape.num_elements() * variable.dtype.size
    return isinstance(gradient, tf.IndexedSlices) and num_bytes >= FROM_BYTES


class TableSum:
    """The sum of all workers' gradients of one table.

    Each worker sends its distinct rows, as many as the worker that has the
    most of them, rounded up to a power of two; or the whole table, where that
    is fewer bytes.

    Args:
      collectives: The `Collectives`.
      spec: `tf.TensorSpec` of the table, in the type that travels.
      name: The same on all workers.
    """

    def __init__(self, collectives, spec, name):
        self._collectives = collectives
        self._num_rows = spec.shape[0]
        self._width = spec.shape[1:].num_elements()
        self._spec = spec
        self._name = name
        self._layout = pieces.Layout([spec])
        self._id_dtype = tf.int32 if spec.dtype.size == 4 else tf.int64
        self._dense_bytes = collective_sums.bytes_sent(
            self._layout.piece_bytes(), collectives.num_workers
        )

    def of(self, slices):
        """Builds the `Rows` of `tf.IndexedSlices`; of None, there are none."""
        if slices is None:
            values = tf.zeros([0, self._width], self._spec.dtype)
            return Rows(values, tf.zeros([0], self._id_dtype))
        values = tf.reshape(slices.values, [-1, self._width])
        values = tf.cast(values, self._spec.dtype)
        ids, places = tf.unique(tf.cast(slices.indices, self._id_dtype))
        values = tf.math.unsorted_segment_sum(values, places, tf.size(ids))
        return Rows(values, ids)

    def build(self, rows, most):
        """Builds the sum.

        Args:
          rows: The `Rows` of this worker.
          most: Scalar int32, the most rows that any worker has.

        Returns:
          A tensor like the table, and the bytes that a worker sends: scalar
          float64.
        """
        power = tf.cast(
            tf.math.ceil(
                tf.math.log(tf.cast(tf.maximum(most, 1), tf.float64))
                / math.log(2.0)
            ),
            tf.int32,
        )
        capacity = tf.bitwise.left_shift(1, power)
        others = self._collectives.num_workers - 1
        row_bytes = others * (self._width + 1) * self._spec.dtype.size
        size = tf.cast(capacity, tf.float64) * row_bytes
        total = tf.cond(
            size < self._dense_bytes,
            lambda: self._by_rows(rows, power, capacity),
            lambda: self._densely(rows),
        )
        total.set_shape(self._spec.shape)
        return total, tf.minimum(size, tf.cast(self._dense_bytes, tf.float64))

    def _by_rows(self, rows, power, capacity):
        ids = tf.bitcast(rows.ids, self._spec.dtype)
        packed = tf.concat([rows.values, ids[:, None]], 1)
        more = capacity - tf.shape(packed)[0]
        # A row with a negative number is left out of a sum of segments.
        nobody = tf.bitcast(tf.constant(-1, self._id_dtype), self._spec.dtype)
        padding = tf.fill([more, self._width + 1], nobody)
        gathered = self._collectives.gather_rows(
            tf.concat([packed, padding], 0), power, self._name, self._name
        )
        # A GPU adds up in an order of chance, another one on each worker.
        with tf.device(self._collectives.device):
            return self._table(
                gathered[:, :-1], tf.bitcast(gathered[:, -1], self._id_dtype)
            )

    def _densely(self, rows):
        vectors = self._layout.vectors([self._table(rows.values, rows.ids)])
        sums = self._layout.sums(
            vectors,
            lambda vector, number: self._collectives.sum(
                vector, f"{self._name}/{number}", (self._name, number)
            ),
        )
        return self._layout.tensors(sums)[0]

    def _table(self, values, ids):
        table = tf.math.unsorted_segment_sum(values, ids, self._num_rows)
        return tf.reshape(table, self._spec.shape)


def build_most(collectives, tables, name):
    """Builds the most rows that any worker has, int32 scalars, a list.

    Args:
      collectives: The `Collectives`.
      tables: List of this worker's `Rows`.
      name: The same on all workers.
    """
    mine = tf.stack([tf.size(rows.ids) for rows in tables])
    of_all = collectives.gather_rows(mine[None], 0, name, name)
    return tf.unstack(tf.reduce_max(of_all, 0), len(tables))
