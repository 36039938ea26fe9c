"""Tables in saved states: in chunks of partitions, one at a time.

A chunk is read from the servers when it is written to the file, and read from
the file when it is sent to the servers, so that a worker needs memory for one.
Chunks are of partitions, which another number of servers has as well. They are
read one after the other, while other workers train: rows may be some updates
newer than the rest of the state. Of dynamic tables, the same chunk of rows, of
columns and of slots comes one after the other, and its ids last: ids that came
or went meanwhile are left out.
"""

import functools

import numpy as np
import tensorflow as tf

from tfdist import saved_state
from tfdist.runtime.variables import dynamic_table
from tfdist.runtime.variables import look_up
from tfdist.runtime.variables import partitions as partitions_lib
from tfdist.runtime.variables import routes
from tfdist.runtime.variables import table_values
from tfdist.runtime.variables import traced_calls

PREFIX = "table/"
"""Begin of the names of chunks in a saved state."""

CHUNK_BYTES = 64 << 20
"""Bytes of a chunk, at most; of a whole partition for very large tables."""

_LEAST_CHUNKS = 64


class TableChunks:
    """Reads and writes the tables of one store.

    Args:
      store: The `ParameterStore`.
    """

    def __init__(self, store):
        self._store = store
        self._traced = traced_calls.Traced(store)

    def arrays(self, tables):
        """Returns chunks by name, a dict of `LazyArray`.

        Args:
          tables: List of `TableVariable` that servers hold.
        """
        found = {}
        for table in tables:
            if table.is_dynamic:
                found.update(self._dynamic_arrays(table, tables))
        for table in tables:
            chunks = _chunks_of(table)
            for chunk in range(chunks):
                read = functools.partial(self._read, table, chunks, chunk)
                found.setdefault(_name(table, chunk), _lazy(table, read))
        return found

    def _dynamic_arrays(self, table, tables):
        """Returns those of a dynamic table, its columns and its slots."""
        ids = table.columns["ids"]
        rows = [t for t in tables if t.pieces is table.pieces and t is not ids]
        # The same rows in each.
        chunks = max(map(_chunks_of, rows))
        found = {}
        for chunk in range(chunks):
            steady = dynamic_table.SteadyIds(
                table, functools.partial(self._read, ids, chunks, chunk)
            )
            for one in rows:
                read = functools.partial(
                    self._read, one, chunks, chunk, steady.begin
                )
                found[_name(one, chunk)] = _lazy(one, read)
            found[_name(ids, chunk)] = _lazy(ids, steady.end)
        return found

    def put(self, table, arrays, more=0):
        """Puts a saved table onto the servers, if there is one.

        Args:
          table: The `TableVariable`.
          arrays: Those of a `SavedState`.
          more: What is added to all values, a number.
        """
        prefix = _name(table, "")
        chunks = sum(name.startswith(prefix) for name in arrays)
        if not chunks:
            return
        self._traced.call(("fill", table.ordinal), lambda: self._fill(table))
        for chunk in range(chunks):
            value = np.asarray(arrays[_name(table, chunk)])
            value = value + more if more else value
            self._traced.call(
                ("put", table.ordinal, chunks),
                functools.partial(self._build_put, table, chunks),
                tf.constant(chunk, tf.int64),
                tf.constant(value, table.dtype),
            )

    def _read(self, table, chunks, chunk, before=lambda: None):
        before()
        return self._traced.call(
            ("read", table.ordinal, chunks),
            lambda chunk: look_up.build_gather(
                self._store, table, self._route(table, chunks, chunk)
            ),
            tf.constant(chunk, tf.int64),
        ).numpy()

    def _fill(self, table):
        for shard in range(self._store.num_shards):
            table_values.build_fill(self._store, table, shard)

    def _build_put(self, table, chunks, chunk, values):
        route = self._route(table, chunks, chunk)
        look_up.build_scatter(self._store, table, route, values)

    def _route(self, table, chunks, chunk):
        with tf.device(self._store.worker_device):
            places = _places(table, chunks, chunk)
            return routes.build(*places, self._store.num_shards)


def _lazy(table, read):
    return saved_state.LazyArray(table.dtype.as_numpy_dtype, read)


def _name(table, chunk):
    return f"{PREFIX}{table.ordinal}/{chunk}"


def _chunks_of(table):
    """Number of chunks of a table, a divisor of the number of partitions."""
    chunks = _LEAST_CHUNKS
    while (
        table.num_bytes > chunks * CHUNK_BYTES
        and chunks < partitions_lib.PARTITIONS
    ):
        chunks *= 2
    return chunks


def _places(table, chunks, chunk):
    """Servers of the rows of one of `chunks` chunks, and their numbers there.

    Args:
      table: The `TableVariable`.
      chunks: Number of chunks that the table is saved in.
      chunk: Number of one, a scalar int64 tensor.
    """
    each = partitions_lib.PARTITIONS // chunks
    partition = chunk * each + tf.range(each, dtype=tf.int64)
    shard, first = table.partitions.place_of(partition)
    within = tf.range(table.partitions.rows_each, dtype=tf.int64)
    row = first[:, None] + within
    shard = tf.broadcast_to(shard[:, None], tf.shape(row))
    return tf.reshape(shard, [-1]), tf.reshape(row, [-1])
