"""Branches of a step that stay functions."""

import tensorflow as tf


def choose(condition, then, otherwise, tensors):
    """Builds the call of one of two functions.

    `tf.cond` would become a switch for each tensor and each variable, and
    TensorFlow would visit each operation of the branch that is not taken: for
    a model of 122 variables a fifth of the step.

    Args:
      condition: Scalar bool tensor.
      then: Callable of `tensors` that returns a list of tensors.
      otherwise: The same, with results of the same types. It must use no
        tensors and variables but its arguments.
      tensors: List of tensors, which may be handles of variables.

    Returns:
      The results, a list.
    """
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in tensors]
    taken = _traced(then, specs)
    captured = taken.captured_inputs
    specs += [tf.TensorSpec(c.shape, c.dtype) for c in captured]

    def ignoring(*tensors_and_captured):
        return otherwise(*tensors_and_captured[: len(tensors)])

    left = _traced(ignoring, specs)
    if left.captured_inputs:
        raise AssertionError(f"{otherwise} uses {left.captured_inputs}.")
    results = tf.raw_ops.If(
        cond=condition,
        input=[*tensors, *captured],
        Tout=[output.dtype for output in taken.outputs],
        then_branch=taken,
        else_branch=left,
    )
    if not taken.outputs:
        return []
    for result, output in zip(results, taken.outputs, strict=True):
        result.set_shape(output.shape)
    return list(results)


def _traced(function, specs):
    traced = tf.function(function, autograph=False)
    return traced.get_concrete_function(*specs)
