"""First values of tables, made on the servers partition by partition.

No process holds a table twice, and no worker holds it at all. A partition's
values depend on its number and the initializer's seed, so that they are the
same for any number of servers.
"""

import math

import keras
import tensorflow as tf

from tfdist.cluster import table_snapshots

_CONSTANT = (
    keras.initializers.Zeros,
    keras.initializers.Ones,
    keras.initializers.Constant,
)
_RANDOM = (
    keras.initializers.RandomNormal,
    keras.initializers.RandomUniform,
    keras.initializers.TruncatedNormal,
    keras.initializers.VarianceScaling,
)


class PartitionSeed(keras.random.SeedGenerator):
    """The random seed of one partition, in the place of a stream of seeds.

    Args:
      seed: int, the table's.
      partition: Number of the partition, a scalar int tensor.
    """

    def __init__(self, seed, partition):
        # Without the state of a stream, which would be a variable.
        self._pair = seed, partition

    def next(self, ordered=True):
        """Returns the seed, int64 `(2,)`."""
        seed, partition = self._pair
        return tf.stack([tf.constant(seed, tf.int64), partition])


def by_partition(initializer, shape):
    """Returns what builds the values of a partition.

    Args:
      initializer: What Keras initialises the table with.
      shape: The table's shape, a tuple of two ints.

    Returns:
      A callable of a partition's number (scalar int64 tensor), a shape and a
      dtype; None where the initializer makes values as a whole only.
    """
    kind = type(initializer)
    if isinstance(initializer, _CONSTANT):
        if not isinstance(getattr(initializer, "value", 0), int | float):
            return None
        return lambda _, part, dtype: initializer(part, dtype=dtype)
    if not isinstance(initializer, _RANDOM):
        return None
    seed = initializer.seed
    if isinstance(seed, keras.random.SeedGenerator):
        seed = int(seed.next().numpy()[0])

    def build(partition, part, dtype):
        config = initializer.get_config()
        made = kind.from_config({**config, "seed": 0})
        made.seed = PartitionSeed(seed, partition)
        if isinstance(made, keras.initializers.VarianceScaling):
            # As for the whole table, of which the part is a few rows.
            made.scale *= _fan(made, part) / _fan(made, shape)
        return made(part, dtype=dtype)

    return build


def _fan(initializer, shape):
    """The number by which an initializer divides for values of a shape."""
    fan_in, fan_out = shape
    inputs = getattr(initializer, "input_axes", None)  # Since Keras 3.15.
    if inputs is not None and initializer.output_axes is not None:
        fan_in = math.prod(shape[axis] for axis in inputs)
        fan_out = math.prod(shape[axis] for axis in initializer.output_axes)
    fans = {
        "fan_in": fan_in,
        "fan_out": fan_out,
        "fan_avg": (fan_in + fan_out) / 2,
    }
    return max(1.0, fans[initializer.mode])


def held_handle(store, table, shard):
    """Handle of what says that a server holds its part as a whole."""
    name = store.held_name(table, table.pieces[shard])
    return store.resource(shard, name, tf.bool, [])


def build_fill(store, table, shard):
    """Builds: a server gets its part of a table, if it has none.

    Args:
      store: The `ParameterStore`.
      table: The `TableVariable`.
      shard: Number of the server.

    Returns:
      Whether it had none, a scalar bool tensor there.
    """
    device = store.devices[shard]
    held = held_handle(store, table, shard)
    handle = store.handle(table, shard, table.pieces[shard])

    def fill():
        with tf.device(device):
            end = _build_first_values(table, shard, handle, device)
            with tf.control_dependencies([end]):
                tf.raw_ops.AssignVariableOp(resource=held, value=True)
        return True

    with tf.device(device):
        known = tf.raw_ops.VarIsInitializedOp(resource=held)
    return tf.cond(known, lambda: False, fill)


def build_fill_lost(store, tables, shard, version, more=0):
    """Builds, in the server's device: the same of tables that it has lost.

    And counts it, in `table_snapshots.build_lost`.

    Args:
      store: The `ParameterStore`.
      tables: List of `TableVariable`, at least one.
      shard: Number of the server.
      version: Updates that it counts, a scalar int64 tensor.
      more: How many of these are lost in all rows besides what is counted.

    Returns:
      How many it had not, a scalar int32 tensor; and the operation that counts.
    """
    filled = [build_fill(store, table, shard) for table in tables]
    new = tf.math.count_nonzero(tf.convert_to_tensor(filled), dtype=tf.int32)
    name = store.name_of("version")
    lost = table_snapshots.build_lost(name) + more
    lost = tf.stack(
        [
            tf.where(new == len(tables), version, lost[0]),
            tf.where(new > 0, version, lost[1]),
        ]
    )
    return new, table_snapshots.build_lost(name, lost)


def _build_first_values(table, shard, handle, device):
    """Builds the values partition by partition; returns the last tensor."""
    partitions = table.partitions
    each, numbers = partitions.rows_each, partitions.on(shard)
    part = (each, table.shape[1])
    room = tf.raw_ops.AssignVariableOp(
        resource=handle,
        value=tf.raw_ops.Empty(
            shape=[table.pieces[shard].rows, part[1]],
            dtype=table.dtype,
            init=False,
        ),
    )

    def make(place):
        with tf.device(device):
            number = place * numbers.step + numbers.start
            put = tf.raw_ops.ResourceScatterUpdate(
                resource=handle,
                indices=place * each + tf.range(each, dtype=tf.int64),
                updates=table.build_values(number, part, table.dtype.name),
            )
            with tf.control_dependencies([put]):
                return [place + 1]

    with tf.control_dependencies([room]):
        (end,) = tf.while_loop(
            lambda place: place < len(numbers),
            make,
            [tf.constant(0, tf.int64)],
            parallel_iterations=1,
        )
    return end
