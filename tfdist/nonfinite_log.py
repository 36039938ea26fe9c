"""Messages about updates with NaN or Inf, of all kinds of strategies."""

import threading
import time
import weakref

from absl import logging
import tensorflow as tf

CHOICES = ("drop", "fail", "ignore")
_LOG_SECONDS = 5.0
_MOST_NAMES = 5
_REMEDY = (
    "Look for NaN in the data and for a learning rate that is too high; where "
    "float16 overflows, use keras.optimizers.LossScaleOptimizer."
)


class NonfiniteLog:
    """Says which updates of one worker are not finite, and why.

    Args:
      choice: One of `CHOICES`.
      worker: Name of this worker, such as `/job:worker/task:0`.
      where: Who leaves such an update out: "servers" or "workers".
    """

    def __init__(self, choice, worker, where):
        self._choice = choice
        self._worker = worker
        self._where = where
        self._lock = threading.Lock()
        self._count = self._told = 0
        self._told_at = float("-inf")

    @property
    def looks(self):
        """Whether updates are looked at."""
        return self._choice != "ignore"

    def _beginning(self, what):
        return (
            f"{self._worker}: the {what} of this step is not finite (it has "
            "NaN or Inf) in "
        )

    def build_text(self, names, each, what="update"):
        """Builds the message of an error, a scalar string tensor.

        Args:
          names: Of what was looked at, a list of strings.
          each: Which of them are finite, a bool tensor `(len(names),)`.
          what: Name of what is not finite.
        """
        bad = tf.boolean_mask(tf.constant(names, tf.string), ~each)
        bad = tf.strings.reduce_join(tf.unique(bad)[0], separator=", ")
        return tf.strings.join([self._beginning(what), bad, ". " + _REMEDY])

    def build_report(self, names, each, what="update"):
        """Builds the line of the log, with arguments as of `build_text`."""
        # TensorFlow keeps what it calls in Python for good, by the process's
        # default graph.
        found = weakref.ref(self)

        def report(each):
            if (log := found()) is not None:
                pairs = zip(names, each, strict=True)
                log.report({name for name, good in pairs if not good}, what)

        tf.numpy_function(report, [each], [])

    def report(self, names, what="update"):
        """Logs, one line in some seconds, however many steps are refused."""
        with self._lock:
            self._count += 1
            now = time.monotonic()
            if now - self._told_at < _LOG_SECONDS:
                return
            new, self._told = self._count - self._told, self._count
            self._told_at = now
        shown = ", ".join(sorted(names)[:_MOST_NAMES])
        if len(names) > _MOST_NAMES:
            shown += f" and {len(names) - _MOST_NAMES} more"
        logging.warning(
            '%s%s. It is left out on all %s (nonfinite="drop"); %d since the '
            "last such line, %d in all. %s",
            self._beginning(what),
            shown,
            self._where,
            new,
            self._count,
            _REMEDY,
        )
