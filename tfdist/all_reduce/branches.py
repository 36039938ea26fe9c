"""Branches of a step that stay functions."""

import tensorflow as tf

from tfdist import private_tensorflow


def choose(condition, then, otherwise, tensors):
    """Builds the call of one of two functions.

    With `tf.cond` alone, TensorFlow would visit each operation of the branch
    that is not taken: for a model of 122 variables a fifth of the step. Here a
    branch is one operation, the call of a function. As elsewhere, TensorFlow
    places each operation of the function, and only its variables decide where:
    a branch may use variables of several devices, and operations that GPUs do
    not have, as those of strings.

    Args:
      condition: Scalar bool tensor.
      then: Callable of `tensors` that returns a list of tensors.
      otherwise: The same, with results of the same types.
      tensors: List of tensors.

    Returns:
      The results, a list.
    """
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in tensors]
    taken, left = _traced(then, specs), _traced(otherwise, specs)

    def call(function):
        # A branch has results.
        return [*function(*tensors), tf.constant(True)]

    return tf.cond(condition, lambda: call(taken), lambda: call(left))[:-1]


def _traced(function, specs):
    traced = tf.function(
        function,
        autograph=False,
        experimental_attributes=private_tensorflow.STAYS_A_FUNCTION,
    )
    return traced.get_concrete_function(*specs)
