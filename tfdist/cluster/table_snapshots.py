"""Tables in a server's snapshots: by stripes of rows, one after the other.

A snapshot of other variables is read at one moment, which needs memory for a
copy. Tables may fill a server, so of them one *stripe* at a time is read and
written: the same share of the rows of each table and its optimizer slots.
Between stripes workers train, so each stripe has a version of its own. No
stripe is newer than the other variables of the snapshot.
"""

import dataclasses
import json
import math

import numpy as np
import tensorflow as tf

from tfdist.cluster import resource_values

STRIPE_BYTES = 32 << 20
"""Bytes of all rows of a stripe, about."""

_META = "rows-{group}.json"
_DATA = "rows-{group}-{stripe}"


def build_lost(counter, value=None):
    """Builds, in the scope's device: updates that rows of tables have lost.

    Of the updates that the server's version counts: rows that its process has
    found in a snapshot are older.

    Args:
      counter: Name of the server's version.
      value: int64 `(2,)` to set it; None to read it.

    Returns:
      The least and the most over all rows, int64 `(2,)`; or the operation.
    """
    handle = tf.raw_ops.VarHandleOp(
        dtype=tf.int64, shape=[2], shared_name=f"{counter}/lost_by_rows"
    )
    if value is not None:
        return tf.raw_ops.AssignVariableOp(
            resource=handle, value=tf.convert_to_tensor(value, tf.int64)
        )
    return resource_values.build_read_or(handle, np.zeros(2, np.int64))


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, or a slot of one, as a server holds it.

    Attributes:
      name: Its name as a resource.
      dtype: Name of its type.
      shape: Of its part on the server, a list of ints.
    """

    name: str
    dtype: str
    shape: list

    @property
    def num_bytes(self):
        """Bytes of all of its rows."""
        return math.prod(self.shape) * tf.as_dtype(self.dtype).size

    def rows(self, stripe, stripes):
        """First row of one of `stripes` stripes, and the row after its last."""
        size = self.shape[0]
        return size * stripe // stripes, size * (stripe + 1) // stripes


class TableWriter:
    """Writes the tables of one group of variables for one server.

    Args:
      device: The server's device.
      lock: Name of the lock that training steps take.
      counter: Name of the server's version.
      tables: Dict of tables' names to names of their types.
    """

    def __init__(self, device, lock, counter, tables):
        self.key = lock, counter, tuple(sorted(tables.items()))
        self._device = device
        self._lock = lock
        self._counter = counter
        self._dtypes = dict(self.key[2])
        self._tables = []
        self._read = tf.function(
            self._build_read,
            input_signature=[tf.TensorSpec([None, 2], tf.int64)],
            autograph=False,
        )

    def is_large(self):
        """Whether the tables are too large to be read at one moment."""
        with tf.device(self._device):
            self._tables = [
                Table(
                    name,
                    dtype,
                    tf.raw_ops.VariableShape(input=_handle(name, dtype))
                    .numpy()
                    .tolist(),
                )
                for name, dtype in self._dtypes.items()
            ]
        return self._num_bytes() > STRIPE_BYTES

    def write(self, directory, group):
        """Writes all stripes to files in `directory`, if `is_large`.

        Args:
          directory: A `pathlib.Path`.
          group: Number of the group, for the names of files.
        """
        stripes = math.ceil(self._num_bytes() / STRIPE_BYTES)
        versions = []
        for stripe in range(stripes):
            bounds = [table.rows(stripe, stripes) for table in self._tables]
            *values, version = self._read(tf.constant(bounds, tf.int64))
            versions.append(int(version))
            with tf.device(self._device):
                tf.raw_ops.SaveV2(
                    prefix=str(
                        directory / _DATA.format(group=group, stripe=stripe)
                    ),
                    tensor_names=list(self._dtypes),
                    shape_and_slices=[""] * len(values),
                    tensors=values,
                )
        meta = {
            "counter": self._counter,
            "versions": versions,
            "tables": [dataclasses.astuple(table) for table in self._tables],
        }
        (directory / _META.format(group=group)).write_text(json.dumps(meta))

    def _num_bytes(self):
        return sum(table.num_bytes for table in self._tables)

    def _build_read(self, bounds):
        with tf.device(self._device):
            mutex = tf.raw_ops.MutexV2(shared_name=self._lock)
            taken = tf.raw_ops.MutexLock(mutex=mutex)
            with tf.control_dependencies([taken]):
                values = [
                    tf.raw_ops.ResourceGather(
                        resource=_handle(name, dtype),
                        indices=tf.range(bounds[k, 0], bounds[k, 1]),
                        dtype=tf.as_dtype(dtype),
                    )
                    for k, (name, dtype) in enumerate(self._dtypes.items())
                ]
                version = tf.raw_ops.ReadVariableOp(
                    resource=_handle(self._counter, "int64"), dtype=tf.int64
                )
            values.append(version)
            with tf.control_dependencies(values):
                tf.raw_ops.ConsumeMutexLock(mutex_lock=taken)
            return values


def restore(directory, device):
    """Puts all tables of a snapshot onto the server, stripe by stripe.

    Args:
      directory: Of the snapshot, a `pathlib.Path`.
      device: The server's device.

    Returns:
      Dict of the group's counter to the versions of its stripes.

    Raises:
      OSError, ValueError, KeyError, TypeError, tf.errors.OpError: It cannot be
        read. What was put there so far is gone again.
    """
    found, made = {}, []
    pattern = _META.format(group="*")
    try:
        for path in sorted(directory.glob(pattern)):
            meta = json.loads(path.read_text())
            group = path.stem.removeprefix(_META.split("{")[0])
            tables = [Table(*fields) for fields in meta["tables"]]
            made += tables
            _restore_group(directory, group, tables, meta, device)
            found[meta["counter"]] = meta["versions"]
    except BaseException:
        with tf.device(device):
            for table in made:
                tf.raw_ops.DestroyResourceOp(
                    resource=_handle(table.name, table.dtype)
                )
        raise
    return found


def _restore_group(directory, group, tables, meta, device):
    with tf.device(device):
        for table in tables:
            tf.raw_ops.AssignVariableOp(
                resource=_handle(table.name, table.dtype),
                value=tf.raw_ops.Empty(
                    shape=table.shape,
                    dtype=tf.as_dtype(table.dtype),
                    init=False,
                ),
            )
        stripes = len(meta["versions"])
        for stripe in range(stripes):
            values = tf.raw_ops.RestoreV2(
                prefix=str(
                    directory / _DATA.format(group=group, stripe=stripe)
                ),
                tensor_names=[table.name for table in tables],
                shape_and_slices=[""] * len(tables),
                dtypes=[tf.as_dtype(table.dtype) for table in tables],
            )
            for table, value in zip(tables, values, strict=True):
                first, end = table.rows(stripe, stripes)
                tf.raw_ops.ResourceScatterUpdate(
                    resource=_handle(table.name, table.dtype),
                    indices=tf.range(first, end, dtype=tf.int64),
                    updates=value,
                )


def _handle(name, dtype):
    # A name's shape stays what it was made with: its part's.
    return tf.raw_ops.VarHandleOp(
        dtype=tf.as_dtype(dtype), shape=None, shared_name=name
    )
