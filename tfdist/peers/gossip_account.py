"""The account of the exchanges of one vector with each other worker."""

import tensorflow as tf

from tfdist import private_tensorflow

# Columns of what is counted for each other worker: the number of its last
# message; exchanges that this worker has begun, and that have ended; those
# that it has given up with the other worker; exchanges that the other worker
# has begun and this one has replied to; those of either with values that are
# not finite; messages, those that came twice, those of a process that does not
# count; and bytes.
COUNTS = 10
(
    SEEN,
    BEGUN,
    ENDED,
    GIVEN_UP,
    SERVED,
    DECLINED,
    MESSAGES,
    DUPLICATES,
    FOREIGN,
    BYTES,
) = range(COUNTS)


class GossipAccount:
    """Counts, and what has been gained from each other worker.

    Args:
      num_workers: int.
    """

    def __init__(self, num_workers):
        hidden = private_tensorflow.hidden_variable
        self._counts = hidden(tf.zeros([num_workers, COUNTS], tf.int64))
        # Sums of the elements that have come from other workers.
        self._gained = hidden(tf.zeros([num_workers], tf.float64))
        self._distance = hidden(tf.zeros([], tf.float64))

    def build_seen(self, worker):
        """Builds the number of a worker's last message, a scalar int64."""
        return tf.gather(self._counts.read_value()[:, SEEN], worker)

    def build_count(self, worker, numbers):
        """Builds additions to the counts of a worker.

        Args:
          worker: Scalar int64, its number.
          numbers: Dict, column -> int or scalar tensor.
        """
        row = [
            tf.cast(numbers.get(column, 0), tf.int64)
            for column in range(COUNTS)
        ]
        self._counts.scatter_add(tf.IndexedSlices(tf.stack(row), worker))

    def build_gain(self, worker, change, is_gain):
        """Builds the note of what has come from a worker.

        Args:
          worker: Scalar int64, its number.
          change: Half of the difference of both vectors; zeros if the exchange
            was declined.
          is_gain: Whether it was not, scalar bool.
        """
        total = tf.reduce_sum(tf.cast(change, tf.float64))
        self._gained.scatter_add(tf.IndexedSlices(total, worker))
        square = tf.cast(tf.reduce_sum(tf.square(change)), tf.float64)
        distance = tf.where(
            is_gain, 2.0 * tf.sqrt(square), self._distance.read_value()
        )
        self._distance.assign(distance, read_value=False)
        self.build_count(worker, {DECLINED: ~is_gain})

    @property
    def counts(self):
        """The counts, an int64 array `(num_workers, COUNTS)`."""
        return self._counts.numpy()

    @property
    def gained(self):
        """Sums of elements that came from workers, float64 `(num_workers,)`."""
        return self._gained.numpy()

    @property
    def distance(self):
        """Distance from the other worker in the last exchange that counted."""
        return float(self._distance.numpy())
