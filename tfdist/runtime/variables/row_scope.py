"""The rows of tables that an update rule runs on, on one server.

In a `RowScope` a table and its slots mean some of their rows: what reads one
gathers the rows, what assigns one scatters them. So Keras's own rule, which
knows nothing of it, updates the rows that have a gradient and no other.
"""

import tensorflow as tf


class RowScope:
    """Rows of one table and of its slots on one server.

    Args:
      rows: Numbers of rows there, `(n,)`, each once.
    """

    def __init__(self, rows):
        self._rows = rows
        # Values that are known, by `ref()`.
        self._values = {}

    def read(self, table):
        """Returns the values of the rows, `(n, ...)`."""
        if table.ref() not in self._values:
            self._values[table.ref()] = tf.raw_ops.ResourceGather(
                resource=table.handle, indices=self._rows, dtype=table.dtype
            )
        return self._values[table.ref()]

    def assign(self, table, value):
        """Sets the rows to `value`, `(n, ...)`."""
        value = tf.convert_to_tensor(value, table.dtype)
        tf.raw_ops.ResourceScatterUpdate(
            resource=table.handle, indices=self._rows, updates=value
        )
        self._values[table.ref()] = value

    def assign_add(self, table, change):
        """Adds `change`, `(n, ...)`, to the rows."""
        if table.ref() in self._values:
            self.assign(table, self.read(table) + change)
            return
        tf.raw_ops.ResourceScatterAdd(
            resource=table.handle,
            indices=self._rows,
            updates=tf.convert_to_tensor(change, table.dtype),
        )

    def assign_sub(self, table, change):
        """Subtracts `change`, `(n, ...)`, from the rows."""
        if table.ref() in self._values:
            self.assign(table, self.read(table) - change)
            return
        tf.raw_ops.ResourceScatterSub(
            resource=table.handle,
            indices=self._rows,
            updates=tf.convert_to_tensor(change, table.dtype),
        )
