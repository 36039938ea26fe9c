"""Gradients and state that are not finite, which would be on all workers."""

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


class FiniteCheck:
    """Checks of one worker's part of an update.

    Args:
      choice: One of `CHOICES`.
      worker: Name of this worker, such as `/job:worker/task:0`.
    """

    def __init__(self, choice, worker):
        self._choice = choice
        self._worker = worker
        self._lock = threading.Lock()
        self._count = self._told = 0
        self._told_at = float("-inf")

    @property
    def looks(self):
        """Whether it looks at all."""
        return self._choice != "ignore"

    def checked(self, vectors, tensors_of, names):
        """Builds the check of vectors that are about to be sent.

        Args:
          vectors: List of tensors.
          tensors_of: Callable that gives the tensors that they are made of.
          names: Names of these, for messages.

        Returns:
          The vectors, zeros in their place where something is not finite;
          and whether all is, a scalar bool tensor. With "fail" they never
          come then.
        """
        # A sum has NaN or Inf if one of its terms has.
        finite = tf.reduce_all(
            [tf.math.is_finite(tf.reduce_sum(vector)) for vector in vectors]
        )

        def refuse():
            each = tf.stack(
                [
                    tf.reduce_all(tf.math.is_finite(tensor))
                    for tensor in tensors_of(vectors)
                ]
            )
            self._build_report(each, names)
            return [tf.zeros_like(vector) for vector in vectors]

        return tf.cond(finite, lambda: list(vectors), refuse), finite

    def _build_report(self, each, names):
        if self._choice == "fail":
            bad = tf.boolean_mask(tf.constant(names, tf.string), ~each)
            bad = tf.strings.reduce_join(bad, separator=", ")
            text = tf.strings.join([self._beginning(), bad, ". " + _REMEDY])
            tf.debugging.Assert(tf.constant(False), [text])
            return
        # TensorFlow keeps what it calls in Python for good, by the process's
        # default graph.
        found = weakref.ref(self)

        def report(each):
            if (check := found()) is not None:
                pairs = zip(names, each, strict=True)
                check.report([name for name, good in pairs if not good])

        tf.numpy_function(report, [each], [])

    def _beginning(self):
        return (
            f"{self._worker}: the update of this step is not finite (it has "
            "NaN or Inf) in "
        )

    def report(self, names):
        """Logs, one line in some seconds, however many steps are refused."""
        with self._lock:
            self._count += 1
            now = time.monotonic()
            if now - self._told_at < _LOG_SECONDS:
                return
            new, self._told = self._count - self._told, self._count
            self._told_at = now
        shown = ", ".join(names[:_MOST_NAMES])
        if len(names) > _MOST_NAMES:
            shown += f" and {len(names) - _MOST_NAMES} more"
        logging.warning(
            '%s%s. It is left out on all workers (nonfinite="drop"); %d since '
            "the last such line, %d in all. %s",
            self._beginning(),
            shown,
            new,
            self._count,
            _REMEDY,
        )
