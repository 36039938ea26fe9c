"""Places of a table's rows: 1,024 logical partitions over the servers.

Partitions, not rows, are what is placed, given first values, saved and moved:
their number does not depend on the number of servers. Neighbouring ids lie in
different partitions, and so do ids that are multiples of 1,024 apart: each
thousand of ids is shifted by another number.
"""

PARTITIONS = 1024
# Odd, near the golden ratio of 2 to the 16: shifts of neighbouring thousands
# are far apart.
_MULTIPLIER, _DIVISOR = 40503, 16


class Partitions:
    """The places of one table's rows.

    Args:
      num_rows: Number of rows of the table.
      num_servers: Number of servers, at most `PARTITIONS`.

    Attributes:
      num_rows: The same.
      num_servers: The same.
      rows_each: Rows of a partition. The last of some are of no id.
    """

    def __init__(self, num_rows, num_servers):
        if not 1 <= num_servers <= PARTITIONS:
            raise ValueError(
                f"Argument `num_servers` must be 1 to {PARTITIONS}, the "
                "number of partitions of a table. Received: "
                f"num_servers={num_servers!r}"
            )
        self.num_rows = num_rows
        self.rows_each = -(-num_rows // PARTITIONS)
        self.num_servers = num_servers

    def on(self, shard):
        """Numbers of the partitions on a server, a `range`."""
        return range(shard, PARTITIONS, self.num_servers)

    def place(self, ids):
        """Finds the server of each id, and its row there.

        Args:
          ids: int64 `(n,)`, tensor or NumPy array, each less than `num_rows`.

        Returns:
          Numbers of servers and of rows, both int64 `(n,)`.
        """
        thousand = ids // PARTITIONS
        partition = (ids + _shift(thousand)) % PARTITIONS
        shard, first = self.place_of(partition)
        return shard, first + thousand

    def place_of(self, partition):
        """Finds the server of each partition, and its first row there.

        Args:
          partition: int64 `(n,)`, tensor or NumPy array.

        Returns:
          Numbers of servers and of rows, both int64 `(n,)`.
        """
        place = partition // self.num_servers
        return partition % self.num_servers, place * self.rows_each


def _shift(thousand):
    return thousand * _MULTIPLIER // _DIVISOR
