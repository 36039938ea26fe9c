"""Look-up of rows of tables: ids to the servers, rows back.

It takes no lock: a row is read as it is at that moment, which may be in the
middle of another worker's update of it, as in Hogwild. A worker that dies in
its look-up holds nobody up.
"""

import functools
import weakref

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.runtime.variables import routes
from tfdist.runtime.variables.variables import active

# Operations that call what is built in other graphs.
_CALLS = ("Case", "If", "PartitionedCall", "StatefulPartitionedCall", "While")


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
        self._exchanged_within = weakref.WeakSet()
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

    def note_exchange(self, graph):
        """Called when rows may have been pushed in a graph.

        If that is of a branch or a function, look-ups of the graphs around it
        come after its call. TensorFlow would keep them in order if they had
        handles in common.
        """
        while (graph := getattr(graph, "outer_graph", None)) is not None:
            self._exchanged_within.add(graph)

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

    def settle(self):
        """Waits for the updates that servers are in the middle of."""
        key = "settle"
        if key not in self._functions:
            function = tf.function(
                lambda: build_settle(self._store), autograph=False
            )
            with private_tensorflow.outside_of_functions():
                self._functions[key] = function.get_concrete_function()
        self._store.call(self._functions[key])

    def forget(self):
        """Forgets what was traced; what is called again is traced again."""
        self._functions.clear()

    def _build(self, table, ids, by_number):
        store, places, build = self._store, table.partitions, build_gather
        graph = tf.compat.v1.get_default_graph()
        if graph in self._exchanged_within:
            calls = [op for op in graph.get_operations() if op.type in _CALLS]
            with tf.device(store.worker_device), tf.control_dependencies(calls):
                ids = tf.identity(ids)
        if table.is_dynamic and not by_number:
            places, build = table.index, _build_found
        # A server has to wait for the ids alone. To hear of what else comes
        # before, it would be sent another message.
        with tf.control_dependencies(None):
            with tf.device(store.worker_device):
                route = routes.of_ids(places, ids)
            return build(store, table, route)


def build_gather(store, table, route):
    """Builds the way of rows from the servers to this worker.

    Args:
      store: The `ParameterStore`.
      table: The `TableVariable`.
      route: The `Route` of the rows.

    Returns:
      A tensor `(n, ...)` here.
    """

    def read(piece, rows):
        return tf.raw_ops.ResourceGather(
            resource=store.handle(table, piece.shard, piece),
            indices=rows,
            dtype=table.dtype,
        )

    return _answers(store, table, route, read)


def _build_found(store, table, route):
    """Builds the way of a dynamic table's rows to this worker."""

    def read(piece, ids):
        return table.build_found(ids, functools.partial(_handle, store, piece))

    return _answers(store, table, route, read)


def _answers(store, table, route, read):
    """Asks all servers; returns their rows, in the order of the whole."""
    found = []
    for piece, asked in zip(table.pieces, route.asked, strict=True):
        with tf.device(store.devices[piece.shard]):
            values = read(piece, asked)
        with tf.device(store.worker_device):
            found.append(tf.identity(values))
    with tf.device(store.worker_device):
        return route.join(found, table.shape[1])


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


def build_settle(store):
    """Builds: the lock of each server is taken, and freed at once.

    Args:
      store: The `ParameterStore`.

    Returns:
      A scalar tensor here, when all have been.
    """
    freed = []
    for shard in range(store.num_shards):
        lock = store.lock(shard)
        with tf.control_dependencies([lock.op]):
            freed.append(store.unlock(shard, lock))
    with tf.control_dependencies(freed), tf.device(store.worker_device):
        return tf.zeros([], tf.int64)


def _handle(store, piece, variable):
    return store.handle(variable, piece.shard, piece)


def build_scatter(store, table, route, values):
    """Builds the way of rows from this worker to the servers.

    Args:
      store: The `ParameterStore`.
      table: The `TableVariable`.
      route: The `Route` of the rows.
      values: Of the rows, `(n, ...)`.
    """
    for number, piece in enumerate(table.pieces):
        with tf.device(store.worker_device):
            part = route.part(number, values)
        with tf.device(store.devices[piece.shard]):
            tf.raw_ops.ResourceScatterUpdate(
                resource=store.handle(table, piece.shard, piece),
                indices=route.asked[number],
                updates=part,
            )
