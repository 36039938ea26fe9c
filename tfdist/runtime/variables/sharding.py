"""Assignment of variables to servers."""


class ByteBalancer:
    """Gives each variable to the server that holds the fewest bytes.

    Variables are placed in the order in which the model creates them, so
    every worker that builds the same model comes to the same answer without
    asking. Ties go to the server with the lowest index. No server holds more
    than the lightest one plus the largest variable.

    Args:
      num_shards: Number of servers, at least 1.
    """

    def __init__(self, num_shards):
        if num_shards < 1:
            raise ValueError(
                "Argument `num_shards` must be at least 1. Received: "
                f"num_shards={num_shards!r}"
            )
        self._bytes = [0] * num_shards

    @property
    def bytes_per_shard(self):
        """Bytes placed on each server so far, a tuple of ints."""
        return tuple(self._bytes)

    def place(self, num_bytes):
        """Returns the server for a variable of `num_bytes` bytes."""
        shard = min(range(len(self._bytes)), key=self._bytes.__getitem__)
        self._bytes[shard] += num_bytes
        return shard

    def add(self, shard, num_bytes):
        """Counts `num_bytes` that were put on `shard` for another reason."""
        self._bytes[shard] += num_bytes


def rows_of_pieces(partitioner, name, shape, dtype):
    """Rows that each piece of a variable gets.

    Args:
      partitioner: Callable of `shape` (`tf.TensorShape`) and `dtype`; returns
        the number of pieces per axis.
      name: The variable's name, for messages.
      shape: Its shape, of rank 1 or more.
      dtype: Its `tf.DType`.

    Returns:
      A list of ints that add up to `shape[0]`; the first ones are larger by
      one where it does not divide evenly, as in TensorFlow.

    Raises:
      ValueError: The partitioner splits another axis than the first, or gives
        a number of pieces that the axis does not have.
    """
    counts = list(partitioner(shape=shape, dtype=dtype))
    if len(counts) != shape.rank or any(count != 1 for count in counts[1:]):
        raise ValueError(
            f"variable_partitioner splits {name!r} of shape {shape} into "
            f"{counts}; allowed is one number per axis, 1 for all but the "
            "first."
        )
    pieces = int(counts[0])
    if not 1 <= pieces <= max(1, shape[0]):
        raise ValueError(
            f"variable_partitioner splits {name!r} of shape {shape} into "
            f"{pieces} pieces; allowed are 1 to {shape[0]}."
        )
    rows, rest = divmod(shape[0], pieces)
    return [rows + (number < rest) for number in range(pieces)]
