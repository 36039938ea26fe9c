"""The chief's learning rate, which workers tell each other."""

import tensorflow as tf

from tfdist import private_tensorflow


class RateNews:
    """The newest rate of the chief that this worker knows.

    Each message has it, so that it spreads from worker to worker. What the
    chief had later is newer, in microseconds of its clock: also where another
    process of the chief has begun to count its steps again. A clock that is set
    back stands still until it is where it was; a new process of the chief hears
    from others where that is.

    Args:
      is_chief: Whether this worker is the chief.
      rate: The variable of the optimizer's learning rate, or None.
    """

    def __init__(self, is_chief, rate):
        self._is_chief = is_chief
        self._rate = rate
        # When the chief had it, the bits of the rate as float64, and whether
        # the variable does not have it yet.
        self._news = private_tensorflow.hidden_variable(tf.zeros([3], tf.int64))

    def build_step(self, rate):
        """Builds, in a step: the chief has a rate, scalar float64."""
        if self._is_chief:
            now = tf.cast(tf.timestamp() * 1e6, tf.int64)
            since = tf.maximum(now, self._news.read_value()[0] + 1)
            news = tf.stack([since, tf.bitcast(rate, tf.int64), 0])
            self._news.assign(news, read_value=False)

    def build_read(self):
        """Builds what a message says: since when, and bits; scalar int64."""
        return tf.unstack(self._news.read_value()[:2])

    def build_hear(self, counts, since, bits):
        """Builds the note of what a message says, if it is newer.

        The chief notes the time alone: its next step is later.

        Args:
          counts: Whether the message does, scalar bool.
          since: From `build_read` of its sender.
          bits: The same.
        """
        news = self._news.read_value()
        is_new = counts & (since > news[0])
        heard = [since, news[1], 0] if self._is_chief else [since, bits, 1]
        news = tf.where(is_new, tf.stack(heard), news)
        self._news.assign(news, read_value=False)

    def build_adopt(self):
        """Builds, between two steps: the variable gets a rate that is new."""
        if self._is_chief or self._rate is None:
            return
        _, bits, is_new = tf.unstack(self._news.read_value())
        own = self._rate.read_value()
        chiefs = tf.cast(tf.bitcast(bits, tf.float64), own.dtype)
        rate = tf.where(is_new > 0, chiefs, own)
        self._rate.assign(rate, read_value=False)
        self._news.scatter_update(
            tf.IndexedSlices(tf.zeros([], tf.int64), tf.constant(2))
        )

    def forget(self):
        """Forgets it, when all have ended a call of `fit`."""
        if not self._is_chief:
            self._news.assign(tf.zeros([3], tf.int64))
