"""Tables of which ids get rows when they first have a gradient.

Beside the rows lie columns of integers: each row's id and when it was last
updated. They are handled as optimizer slots of the table are, so that a row
and its id are saved and restored together.
"""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster import resource_values
from tfdist.runtime.variables import hashing
from tfdist.runtime.variables import row_index
from tfdist.runtime.variables import variable_list
from tfdist.runtime.variables.table import TablePiece
from tfdist.runtime.variables.table import TableVariable

COUNTS = ("admitted", "evicted", "refused")
"""Names of what a server counts of a dynamic table; snapshots have it."""


class DynamicRows(keras.initializers.Initializer):
    """The initializer by which a strategy knows a dynamic table.

    A row's first values are uniform in [low, high), and depend on its id and
    the seed alone.

    Args:
      low: The least first value.
      high: Their bound; `low` itself for a constant.
      seed: int.
      admit_after: See `row_index.RowIndex`.
      evict_after: The same.
    """

    def __init__(self, low, high, seed, admit_after, evict_after):
        self.low = low
        self.high = high
        self.seed = seed
        self.admit_after = admit_after
        self.evict_after = evict_after

    def __call__(self, shape, dtype=None):
        """Refuses, as nobody else can make the table, but to give a shape."""
        if tf.distribute.has_strategy() and not tf.executing_eagerly():
            return tf.zeros(shape, dtype)
        raise ValueError(
            "tfdist.layers.DynamicEmbedding must be built in the scope of a "
            "strategy with parameter servers and tables, such as "
            "tfdist.AsyncStrategy(table_bytes=2**26). Received: strategy "
            f"{type(tf.distribute.get_strategy()).__name__}, without tables"
        )

    def first_rows(self, ids, width, dtype):
        """Builds the first values of ids' rows.

        Args:
          ids: int64 `(n,)`.
          width: Number of columns.
          dtype: Of the result.

        Returns:
          A tensor `(n, width)`.
        """
        if self.low == self.high:
            value = tf.constant(self.low, dtype)
            return tf.fill(tf.stack([tf.size(ids), width]), value)
        share = hashing.uniform(ids, width, self.seed, dtype)
        return self.low + (self.high - self.low) * share

    def get_config(self):
        """Returns the arguments that make an equal one."""
        return dict(vars(self))


class SteadyIds:
    """Ids of some rows, of which those that come or go meanwhile are left out.

    Rows are read without a lock, one array after the other. `begin` comes
    before all others are read, and `end` after them: what was read in between
    is of the ids that `end` returns.

    Args:
      table: The `DynamicTable`.
      read: Callable that returns the ids, a NumPy array.
    """

    def __init__(self, table, read):
        self._table = table
        self._read = read
        self._before = None

    def begin(self):
        """Reads the ids, if they have not been read yet."""
        if self._before is None:
            self._before = self._read()
            # An update that gives a row to an id writes the id first.
            self._table.settle()

    def end(self):
        """Reads them again; returns them, `EMPTY` where they have changed."""
        self.begin()
        before, self._before = self._before, None
        return np.where(before == self._read(), before, row_index.EMPTY)


@dataclasses.dataclass(frozen=True)
class DynamicPiece(TablePiece):
    """The part of a dynamic table on one server.

    Attributes:
      index: The `RowIndex`.
    """

    index: object

    @property
    def places(self):
        """See `routes.of_ids`."""
        return self.index


class DynamicTable(TableVariable):
    """A table in which ids are found by a `RowIndex`.

    Args:
      rows_maker: The `DynamicRows`.
      **kwargs: Of `TableVariable`.
    """

    is_dynamic = True

    def __init__(self, *, rows_maker, **kwargs):
        super().__init__(**kwargs)
        self.rows_maker = rows_maker
        # Columns of integers, by name; the table keeps them.
        self.columns = {}
        # Of optimizers, who keep them.
        self.slots = variable_list.VariableList()

    @property
    def index(self):
        """The `RowIndex`."""
        return self.pieces[0].index

    def new_index(self, partitions):
        """Returns the `RowIndex` for its `Partitions`."""
        maker = self.rows_maker
        return row_index.RowIndex(
            partitions, maker.admit_after, maker.evict_after
        )

    @property
    def fits_file(self):
        """A file of Keras's has no place for ids."""
        return False

    def refusal(self, what):
        """Returns the error of a use of more than single rows."""
        return ValueError(
            f"{self.path!r} is a dynamic table on parameter servers, and no "
            "worker holds its rows: only look-ups of ids and their gradients "
            "reach it. Leave the other use out, or use "
            "keras.layers.Embedding, if all ids are known before training. "
            f"Received: {what}."
        )

    def refusal_to_save(self, what):
        """Returns the error of a file that has no place for ids."""
        return ValueError(
            f"{self.path!r} is a dynamic table on parameter servers, and this "
            "file has no place for the ids of its rows. To resume training, "
            "save with tfdist.callbacks.ClusterCheckpoint; to use the rows "
            "elsewhere, write them with strategy.export_tables(directory). "
            f"Received: {what}."
        )

    def read_rows(self, first, end):
        """Returns rows by their numbers, whatever ids they have."""
        rows = tf.range(first, end, dtype=tf.int64)
        return self._look_up(self, rows, by_number=True).numpy()

    def settle(self):
        """Waits for the updates that servers are in the middle of."""
        self._look_up.settle()

    def counts(self):
        """Returns what servers hold, a list of dicts, one for each."""
        found = self._look_up.counts(self)
        names = "rows", "used", *COUNTS
        return [
            dict(zip(names, [piece.rows, *map(int, numbers)], strict=True))
            for piece, numbers in zip(self.pieces, found, strict=True)
        ]

    def _known(self, ids):
        return tf.not_equal(ids, row_index.EMPTY), f"not {row_index.EMPTY}"

    def _first_rows(self, ids):
        return self.rows_maker.first_rows(ids, self.shape[1], self.dtype)

    def build_found(self, ids, handle):
        """Builds the rows of ids on the server that has them.

        Args:
          ids: int64 `(n,)`, of the server's partitions.
          handle: Callable of a variable that gives its handle there.

        Returns:
          A tensor `(n, width)`; first values where an id has no row.
        """
        rows = self.index.find(ids, handle(self.columns["ids"]))
        has = rows >= 0
        values = tf.raw_ops.ResourceGather(
            resource=handle(self),
            indices=tf.maximum(rows, 0),
            dtype=self.dtype,
        )
        return tf.where(has[:, None], values, self._first_rows(ids))

    def counts_of(self, shard):
        """Name, type and shape of what a server has counted."""
        name = f"variable/{self.ordinal}/{shard}/counts"
        return name, tf.int64, [len(COUNTS)]

    def build_counts(self, shard, resource, handle):
        """Builds the counts of one server, int64 `(4,)`: used rows, `COUNTS`.

        Args:
          shard: Number of the server.
          resource: Callable of `counts_of` that gives a handle there.
          handle: Callable of a variable that does.
        """
        ids = tf.raw_ops.ReadVariableOp(
            resource=handle(self.columns["ids"]), dtype=tf.int64
        )
        used = tf.math.count_nonzero(tf.not_equal(ids, row_index.EMPTY))
        counts = _read(resource(*self.counts_of(shard)))
        return tf.concat([used[None], counts], 0)

    def build_admission(self, gradient, section):
        """Builds the rows of ids that have a gradient, under the lock.

        Args:
          gradient: `tf.IndexedSlices` by ids.
          section: The `ServerScope`.

        Returns:
          `tf.IndexedSlices` by the server's rows, of those that have one.
        """
        ids = gradient.indices
        columns = {name: v.handle for name, v in self.columns.items()}
        admitted = self.index.admit(
            ids,
            section.counter("version").read(),
            columns["ids"],
            columns["updated"],
            columns.get("asked"),
        )
        _add(section.resource(*self.counts_of(section.shard)), admitted.counts)
        new = tf.where(admitted.is_new)[:, 0]
        with section.on_rows(tf.gather(admitted.rows, new)):
            self.assign(self._first_rows(tf.gather(ids, new)))
            for slot in self.slots:
                _build_first_slots(slot, tf.size(new))
        has = tf.where(admitted.rows >= 0)[:, 0]
        return tf.IndexedSlices(
            tf.gather(gradient.values, has),
            tf.gather(admitted.rows, has),
            gradient.dense_shape,
        )


def _build_first_slots(slot, number):
    """Builds: rows of a slot in the scope are as when it was made.

    The slot may be of another optimizer than the one whose step this is, and
    be freed before the next step.
    """

    def assign():
        width = slot.shape[1]
        first = slot.build_values(0, (1, width), slot.dtype.name)
        slot.assign(tf.broadcast_to(first, tf.stack([number, width])))
        return True

    there = tf.raw_ops.VarIsInitializedOp(resource=slot.handle)
    tf.cond(there, assign, lambda: False)


def _read(counts):
    """Builds what a server has counted; zeros if it has not."""
    zeros = np.zeros(len(COUNTS), np.int64)
    return resource_values.build_read_or(counts, zeros)


def _add(counts, new):
    tf.raw_ops.AssignVariableOp(resource=counts, value=_read(counts) + new)
