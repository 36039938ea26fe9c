"""Look-up of rows of tables: ids to the servers, rows back.

It takes no lock: a row is read as it is at that moment, which may be in the
middle of another worker's update of it, as in Hogwild. A worker that dies in
its look-up holds nobody up.
"""

import functools
import weakref

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.runtime.variables.variables import active


class LookUp:
    """Looks up rows for one worker.

    Args:
      store: The `ParameterStore`.
      before: Callable of a table that sees to it that servers hold it.
    """

    def __init__(self, store, before):
        self._store = store
        self._before = before
        # By table and type of ids.
        self._functions = {}
        store.traced.add(self)

    def __call__(self, table, ids, by_number=False):
        """Returns the rows of `table` with `ids`, on this worker.

        Args:
          table: The `TableVariable`.
          ids: `(n,)`, in the table's range.
          by_number: Whether they are numbers of rows of a dynamic table.

        Returns:
          A tensor `(n, ...)` of the table's type.
        """
        if not tf.executing_eagerly():
            if active.step is not None:
                # A model that is built in its first step.
                with (
                    tf.init_scope(),
                    private_tensorflow.outside_of_functions(),
                ):
                    self._before(table)
            return self._build(table, ids, by_number)
        self._before(table)
        key = table.ordinal, ids.dtype, by_number
        if key not in self._functions:
            known = weakref.ref(table)
            function = tf.function(
                lambda ids: self._build(known(), ids, by_number),
                input_signature=[tf.TensorSpec([None], ids.dtype)],
                autograph=False,
            )
            with private_tensorflow.outside_of_functions():
                self._functions[key] = function.get_concrete_function()
        return self._store.call(self._functions[key], ids)

    def counts(self, table):
        """Returns what servers count of a dynamic table.

        Args:
          table: The `DynamicTable`.

        Returns:
          An int64 array `(num_servers, 4)`, see `DynamicTable.build_counts`.
        """
        self._before(table)
        key = table.ordinal, "counts"
        if key not in self._functions:
            known = weakref.ref(table)
            function = tf.function(
                lambda: build_counts(self._store, known()), autograph=False
            )
            with private_tensorflow.outside_of_functions():
                self._functions[key] = function.get_concrete_function()
        return self._store.call(self._functions[key]).numpy()

    def forget(self):
        """Forgets what was traced; what is called again is traced again."""
        self._functions.clear()

    def _build(self, table, ids, by_number):
        store = self._store
        if table.is_dynamic and not by_number:
            return build_found(store, table, ids)
        with tf.device(store.worker_device):
            places = table.partitions.place(tf.cast(ids, tf.int64))
        return build_gather(store, table, *places)


def build_gather(store, table, shard, row):
    """Builds the way of rows from the servers to this worker.

    Args:
      store: The `ParameterStore`.
      table: The `TableVariable`.
      shard: Number of each row's server, int64 `(n,)`.
      row: Its number there, int64 `(n,)`.

    Returns:
      A tensor `(n, ...)` here.
    """
    with tf.device(store.worker_device):
        rows, places = [row], None
        if store.num_shards > 1:
            rows, places = _parted(
                shard, row, tf.range(tf.size(row)), store.num_shards
            )
    found = []
    for piece, some in zip(table.pieces, rows, strict=True):
        with tf.device(store.devices[piece.shard]):
            values = tf.raw_ops.ResourceGather(
                resource=store.handle(table, piece.shard, piece),
                indices=some,
                dtype=table.dtype,
            )
        with tf.device(store.worker_device):
            found.append(tf.identity(values))
    return _joined(store, table, found, places)


def _joined(store, table, found, places):
    """Rows of all servers in the order in which they were asked for."""
    with tf.device(store.worker_device):
        if places is None:
            return found[0]
        whole = tf.dynamic_stitch(places, found)
        return tf.reshape(whole, [-1, *table.shape[1:]])


def build_found(store, table, ids):
    """Builds the way of a dynamic table's rows to this worker.

    Args:
      store: The `ParameterStore`.
      table: The `DynamicTable`.
      ids: int64 `(n,)`.

    Returns:
      A tensor `(n, ...)` here.
    """
    with tf.device(store.worker_device):
        parts, places = [tf.identity(ids)], None
        if store.num_shards > 1:
            parts, places = _parted(
                table.index.shards(ids),
                ids,
                tf.range(tf.size(ids)),
                store.num_shards,
            )
    found = []
    for piece, some in zip(table.pieces, parts, strict=True):
        with tf.device(store.devices[piece.shard]):
            values = table.build_found(
                some, functools.partial(_handle, store, piece)
            )
        with tf.device(store.worker_device):
            found.append(tf.identity(values))
    return _joined(store, table, found, places)


def build_counts(store, table):
    """Builds what `LookUp.counts` returns."""
    found = []
    for piece in table.pieces:
        with tf.device(store.devices[piece.shard]):
            found.append(
                table.build_counts(
                    piece.shard,
                    functools.partial(store.resource, piece.shard),
                    functools.partial(_handle, store, piece),
                )
            )
    with tf.device(store.worker_device):
        return tf.stack(found)


def _handle(store, piece, variable):
    return store.handle(variable, piece.shard, piece)


def build_scatter(store, table, shard, row, values):
    """Builds the way of rows from this worker to the servers.

    Args:
      store: The `ParameterStore`.
      table: The `TableVariable`.
      shard: See `build_gather`.
      row: The same.
      values: Of the rows, `(n, ...)`.
    """
    with tf.device(store.worker_device):
        rows, parts = _parted(shard, row, values, store.num_shards)
    for piece, some, part in zip(table.pieces, rows, parts, strict=True):
        with tf.device(store.devices[piece.shard]):
            tf.raw_ops.ResourceScatterUpdate(
                resource=store.handle(table, piece.shard, piece),
                indices=some,
                updates=part,
            )


def _parted(shard, row, values, num_servers):
    """Parts rows and what is beside them by server: two lists."""
    shard = tf.cast(shard, tf.int32)
    return (
        tf.dynamic_partition(row, shard, num_servers),
        tf.dynamic_partition(values, shard, num_servers),
    )
