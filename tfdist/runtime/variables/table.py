"""Tables: variables that live on the servers alone, read by rows.

A worker holds no replica of a table. Its own storage is a *stand-in* without
rows, by which gradients and optimizers know it; a look-up asks the servers for
the rows of a batch, and its gradient is of these rows.
"""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from tfdist import compiled_parts
from tfdist import private_keras_variables
from tfdist import private_tensorflow
from tfdist.runtime.variables import rounded_ids
from tfdist.runtime.variables import routes
from tfdist.runtime.variables.variables import Piece
from tfdist.runtime.variables.variables import ReplicaVariable
from tfdist.runtime.variables.variables import Role
from tfdist.runtime.variables.variables import active

RULES = ("lazy", "dense")
"""Update rules of tables: of rows with a gradient alone, or of all rows."""

WHOLE_BYTES = 1 << 30
"""Bytes of the largest table that is put into a model's file as a whole."""

_READ_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class TableSettings:
    """Settings of a strategy about tables.

    Attributes:
      from_bytes: Embeddings of so many bytes or more are tables; None: none
        is.
      rule: One of `RULES`.
    """

    from_bytes: int | None = None
    rule: str = "lazy"


NO_TABLES = TableSettings()


@dataclasses.dataclass(frozen=True)
class TablePiece(Piece):
    """The part of a table on one server.

    `first` and `rows` are in the order of partitions, see `Partitions`.

    Attributes:
      partitions: The `Partitions`.
    """

    partitions: object

    def of(self, tensor):
        """Refuses: nothing of a worker is as large as a table."""
        raise ValueError(
            "A worker's tensor has the shape of a table, "
            f"{tensor.shape}: only rows of tables can be sent."
        )

    def slices_of(self, slices, shape):
        """Returns the `tf.IndexedSlices` of this server, by its rows."""
        route = routes.of_ids(self.places, slices.indices)
        return tf.IndexedSlices(
            route.part(self.number, slices.values),
            route.asked[self.number],
            tf.constant([self.rows, *shape[1:]], tf.int64),
        )

    @property
    def places(self):
        """See `routes.of_ids`."""
        return self.partitions


class TableVariable(ReplicaVariable):
    """A variable whose rows are on servers, and on no worker.

    Args:
      shape: Of the table, a tuple of two ints.
      path: Keras's name of it, for messages.
      build_values: Callable of the number of a partition, a scalar int tensor,
        and a shape; builds the first values of its rows.
      is_slot: Whether it is an optimizer's, of another table.
      look_up: Callable of this and ids (`(n,)`, each once), which gives or
        builds their rows here.
      rule: One of `RULES`.
      **kwargs: Of `ReplicaVariable`.

    Attributes:
      is_dynamic: Whether ids are not numbers of rows, see `DynamicTable`.
      holds_updates: Whether values are numbers of updates of the server.
    """

    is_dynamic = False
    holds_updates = False

    def __init__(
        self,
        *,
        shape,
        path,
        build_values,
        look_up,
        rule,
        dtype,
        is_slot=False,
        **kwargs,
    ):
        super().__init__(
            role=Role.TABLE,
            initial_value=tf.zeros([0, shape[1]], dtype),
            shape=[None, shape[1]],
            **kwargs,
        )
        self._full_shape = tf.TensorShape(shape)
        self.path = path
        self.build_values = build_values
        self.rule = rule
        self.is_slot = is_slot
        self._look_up = look_up

    @property
    def partitions(self):
        """The `Partitions`."""
        return self.pieces[0].partitions

    def shape_of(self, piece):
        """Shape of a `Piece`, or of the rows in a `RowScope`."""
        if piece is None:
            return self._full_shape
        section = active.section
        if section is not None and section.row_scope is not None:
            return tf.TensorShape([None, self._full_shape[1]])
        return super().shape_of(piece)

    def sparse_read(self, indices, name=None):
        """Returns rows, as `tf.gather`; its gradient is summed by id."""
        if active.section is not None:
            raise self.refusal("an update rule that looks up rows")
        if private_tensorflow.is_in_custom_gradient():
            raise self.refusal(
                "a look-up in a function with a gradient of its own "
                "(keras.remat, RematScope, tf.recompute_grad, "
                "tf.custom_gradient)"
            )
        indices = tf.convert_to_tensor(indices)
        if not self.is_dynamic:
            if indices.dtype.size < tf.int32.size:
                # Else the number of rows would have to fit into their type.
                indices = tf.cast(indices, tf.int32)
            rounded_ids.check(indices, self.shape[0], self.path)
        with compiled_parts.outside(), tf.name_scope(name or "look_up"):
            if self.is_dynamic:
                indices = rounded_ids.checked(indices, self.path)
            return self._sparse_read(indices)

    def _sparse_read(self, indices):
        unique, where = tf.unique(tf.reshape(indices, [-1]))
        known, allowed = self._known(unique)
        message = f"Ids of the table {self.path!r} must be {allowed}. Received:"
        checked = tf.debugging.Assert(
            tf.reduce_all(known), [message, tf.boolean_mask(unique, ~known)]
        )
        with tf.control_dependencies([checked] if checked is not None else []):
            unique = tf.identity(unique)
        shape = tf.constant(self.shape.as_list(), unique.dtype)

        @tf.custom_gradient
        def spread(stand_in, rows):

            def gradient(upstream):
                summed = routes.summed(upstream, where, tf.size(unique))
                return tf.IndexedSlices(summed, unique, shape), None

            return tf.gather(rows, where), gradient

        # From outside: a custom gradient can make no handle on a server.
        rows = self._look_up(self, unique)
        found = spread(super()._read_variable_op(), rows)
        found = tf.reshape(
            found, tf.concat([tf.shape(indices), self.shape[1:]], 0)
        )
        found.set_shape(indices.shape + self.shape[1:])
        return found

    def _known(self, ids):
        """Says if ids are allowed; returns that, and the rule in words."""
        known = tf.logical_and(ids >= 0, ids < self.shape[0])
        return known, f"at least 0 and less than {self.shape[0]}"

    def gather_nd(self, indices, name=None):
        """Refuses; see `refusal`."""
        raise self.refusal("tf.gather_nd")

    def refusal(self, what):
        """Returns the error of a use that only a replica allows.

        Args:
          what: What has used it, a str.
        """
        return ValueError(
            f"{self.path!r} is a table on parameter servers, and no worker "
            f"holds its {self.shape[0]} rows: only look-ups of rows and their "
            "gradients reach it, as of keras.layers.Embedding. Leave the "
            "other use out, or give the strategy a larger `table_bytes` or "
            f"None, so that each worker has a replica. Received: {what}."
        )

    def _read_variable_op(self, no_copy=False):
        section = active.section
        if section is None:
            raise self.refusal(
                "a use of all its values (a regularizer, a constraint, an "
                "average of weights, or code that reads it other than by "
                "keras.ops.take with axis=0)"
            )
        if section.row_scope is None:
            return super()._read_variable_op(no_copy)
        return section.row_scope.read(self)

    def _mutate(self, kind, value, kwargs):
        section = active.section
        if section is None:
            raise self.refusal(f"{kind} of new values")
        if section.row_scope is None:
            return super()._mutate(kind, value, kwargs)
        if not hasattr(section.row_scope, kind):
            raise self.refusal(f"{kind} by an update rule")
        return getattr(section.row_scope, kind)(self, value)

    def refusal_to_save(self, what):
        """Returns the error of a file that cannot hold the table.

        Args:
          what: What was to be written, a str.
        """
        return ValueError(
            f"{self.path!r} is a table on parameter servers, of "
            f"{self.num_bytes:,} bytes in {self.shape[0]} rows, and "
            "`model.save` and `save_weights` hold tables of at most "
            f"{WHOLE_BYTES:,} bytes, other files none. To resume training, "
            "save with tfdist.callbacks.ClusterCheckpoint; to use the rows "
            "elsewhere, write them with strategy.export_tables(directory). "
            f"Received: {what}."
        )

    @property
    def fits_file(self):
        """Whether a file of Keras's may hold it as a whole."""
        return self.num_bytes <= WHOLE_BYTES

    def ranges_of_rows(self, num_bytes):
        """Ranges of rows of at most so many bytes, or of one row.

        Args:
          num_bytes: int.

        Returns:
          List of pairs of ints: the first row, and the one after the last.
        """
        row_bytes = self.num_bytes // self.shape[0]
        each = max(1, num_bytes // max(1, row_bytes))
        count = math.ceil(self.shape[0] / each)
        return [
            (k * each, min((k + 1) * each, self.shape[0])) for k in range(count)
        ]

    def read_rows(self, first, end):
        """Returns the rows from `first` to `end - 1`, a NumPy array."""
        return self._look_up(self, tf.range(first, end, dtype=tf.int64)).numpy()

    def numpy(self):
        """Returns all values where they are saved; else refuses.

        Raises:
          ValueError: It is no save, or not `fits_file`.
        """
        if not private_keras_variables.is_saving():
            raise self.refusal("a read of all its values")
        if not self.fits_file:
            raise self.refusal_to_save("a save of all its values")
        whole = np.empty(self.shape.as_list(), self.dtype.as_numpy_dtype)
        for first, end in self.ranges_of_rows(_READ_BYTES):
            whole[first:end] = self.read_rows(first, end)
        return whole

    def _serialize_to_tensors(self):
        raise self.refusal_to_save(
            "tf.train.Checkpoint or a saved model, which would hold none of "
            "its rows"
        )

    def _restore_from_tensors(self, restored_tensors):
        raise self.refusal("values from a checkpoint or a file")
