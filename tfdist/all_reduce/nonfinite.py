"""Gradients and state that are not finite, which would be on all workers."""

import tensorflow as tf

from tfdist import nonfinite_log
from tfdist.all_reduce import branches


class FiniteCheck(nonfinite_log.NonfiniteLog):
    """Checks of one worker's part of an update.

    Args:
      choice: One of `nonfinite_log.CHOICES`.
      worker: Name of this worker, such as `/job:worker/task:0`.
      device: This worker's CPU.
    """

    def __init__(self, choice, worker, device):
        super().__init__(choice, worker, "workers")
        self._device = device

    def checked(self, vectors, tensors_of, names, instead):
        """Builds the check of vectors that are about to be sent.

        Args:
          vectors: List of tensors.
          tensors_of: Callable that gives the tensors that they are made of.
          names: Names of these, for messages.
          instead: Callable of `vectors` that gives what to send in their
            place where something is not finite.

        Returns:
          The vectors, or what comes instead; and whether all is finite, a
          scalar bool tensor. With "fail" they never come if it is not.
        """
        # A sum has NaN or Inf if one of its terms has.
        finite = tf.reduce_all(
            [tf.math.is_finite(_sum(vector)) for vector in vectors]
        )

        def keep(*vectors):
            return list(vectors)

        def refuse(*vectors):
            each = tf.stack(
                [
                    tf.reduce_all(tf.math.is_finite(tensor))
                    for tensor in tensors_of(vectors)
                ]
            )
            # Python runs in this process, and no GPU has strings.
            with tf.device(self._device):
                if self._choice == "fail":
                    text = self.build_text(names, each)
                    tf.debugging.Assert(tf.constant(False), [text])
                else:
                    self.build_report(names, each)
            return instead(vectors)

        return branches.choose(finite, keep, refuse, vectors), finite


def _sum(vector):
    # Of finite numbers in float16 it may be Inf.
    wide = tf.float32 if vector.dtype.size < 4 else vector.dtype
    return tf.reduce_sum(tf.cast(vector, wide))
