"""The chief's learning rates, as numbers whose sums are exact.

Halves of 16 bits, which float32 holds; zeros from all but the chief.
"""

import tensorflow as tf

from tfdist.all_reduce import pieces


class ChiefRates:
    """Learning rates of which the chief's count for all workers.

    Args:
      variables: List of scalar `tf.Variable`.

    Attributes:
      variables: The same.
      length: Number of elements of `numbers`, an int.
    """

    def __init__(self, variables):
        self.variables = variables
        self._wide = [
            pieces.wire_dtype(one.dtype, "learning_rate") for one in variables
        ]
        self.length = sum(wide.size // 2 for wide in self._wide)

    def numbers(self, is_chief):
        """Builds this worker's part of the sums.

        Args:
          is_chief: Whether this worker is the chief.

        Returns:
          A float32 vector of `length`.
        """
        found = [tf.zeros([0])]
        for variable, wide in zip(self.variables, self._wide, strict=True):
            words = tf.bitcast(tf.cast(variable, wide), tf.int32)
            words = tf.reshape(words, [-1])
            halves = tf.stack([tf.bitwise.right_shift(words, 16), words])
            halves = tf.bitwise.bitwise_and(halves, 0xFFFF)
            numbers = tf.cast(halves, tf.float32) * float(is_chief)
            found.append(tf.reshape(numbers, [-1]))
        return tf.concat(found, 0)

    def of(self, sums):
        """Builds the rates that `numbers` of all workers add up to.

        Args:
          sums: The vector of the sums, of `length`.

        Returns:
          A list of scalar tensors.
        """
        sums = tf.cast(sums, tf.int32)
        found, start = [], 0
        for variable, wide in zip(self.variables, self._wide, strict=True):
            end = start + wide.size // 2
            high, low = tf.unstack(tf.reshape(sums[start:end], [2, -1]))
            start = end
            words = tf.bitwise.bitwise_or(tf.bitwise.left_shift(high, 16), low)
            words = words[0] if words.shape[0] == 1 else words
            found.append(tf.cast(tf.bitcast(words, wide), variable.dtype))
        return found

    def assign(self, sums):
        """Builds the assignment of the rates that `of` returns."""
        for variable, rate in zip(self.variables, self.of(sums), strict=True):
            variable.assign(rate, read_value=False)
