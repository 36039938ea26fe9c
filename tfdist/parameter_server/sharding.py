"""Which server holds which variable."""


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
                f"num_shards must be at least 1, came: {num_shards!r}."
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
