"""Branches of a step that stay functions."""

import tensorflow as tf

from tfdist import private_tensorflow


def choose(condition, then, otherwise, tensors):
    """Builds the call of one of two functions.

    Args:
      condition: Scalar bool tensor.
      then: Callable of `tensors` that returns a list of tensors.
      otherwise: The same, with results of the same types. It must use no
        tensors and variables but its arguments, which `whole` alone checks.
      tensors: List of tensors, which may be handles of variables.

    Returns:
      The results, a list.
    """
    build = lowered if tf.config.list_logical_devices("GPU") else whole
    return build(condition, then, otherwise, tensors)


def whole(condition, then, otherwise, tensors):
    """As `choose`, where all is on one device.

    `tf.cond` would become a switch for each tensor and each variable, and
    TensorFlow would visit each operation of the branch that is not taken: for
    a model of 122 variables a fifth of the step.
    """
    specs = _specs(tensors)
    taken = _traced(then, specs)
    captured = taken.captured_inputs

    def ignoring(*tensors_and_captured):
        return otherwise(*tensors_and_captured[: len(tensors)])

    left = _traced(ignoring, [*specs, *_specs(captured)])
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


def lowered(condition, then, otherwise, tensors):
    """As `choose`, with variables and operations of several devices.

    TensorFlow places each operation of a branch by itself: a GPU has no
    variables of int32, and no operations on strings. There is a switch for each
    tensor and each variable, but a branch is one operation, the call of a
    function: with 122 variables and their slots, about 5 % of a step.
    """
    taken, left = (
        _traced(one, _specs(tensors), private_tensorflow.STAYS_A_FUNCTION)
        for one in (then, otherwise)
    )

    def call(function):
        # A branch has results.
        return [*function(*tensors), tf.constant(True)]

    return tf.cond(condition, lambda: call(taken), lambda: call(left))[:-1]


def _specs(tensors):
    return [tf.TensorSpec(t.shape, t.dtype) for t in tensors]


def _traced(function, specs, attributes=None):
    traced = tf.function(
        function, autograph=False, experimental_attributes=attributes
    )
    return traced.get_concrete_function(*specs)
