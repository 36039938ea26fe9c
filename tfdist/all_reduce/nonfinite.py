"""Gradients and state that are not finite, which would be on all workers."""

import tensorflow as tf

from tfdist import nonfinite_log


class FiniteCheck(nonfinite_log.NonfiniteLog):
    """Checks of one worker's part of an update.

    Args:
      choice: One of `nonfinite_log.CHOICES`.
      worker: Name of this worker, such as `/job:worker/task:0`.
    """

    def __init__(self, choice, worker):
        super().__init__(choice, worker, "workers")

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
            if self._choice == "fail":
                text = self.build_text(names, each)
                tf.debugging.Assert(tf.constant(False), [text])
            else:
                self.build_report(names, each)
            return [tf.zeros_like(vector) for vector in vectors]

        return tf.cond(finite, lambda: list(vectors), refuse), finite
