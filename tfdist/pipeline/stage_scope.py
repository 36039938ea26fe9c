"""The scope in which a stage computes with weights that it is given."""

import contextlib

import keras
import tensorflow as tf

from tfdist import private_tensorflow


class StageScope(keras.StatelessScope):
    """A scope in which weights are tensors, and each use of them counts.

    Args:
      weights: Variables that get gradients.
      **kwargs: Of Keras's scope.
    """

    def __init__(self, weights, **kwargs):
        super().__init__(**kwargs)
        self._weights = {id(variable) for variable in weights}

    def get_current_value(self, variable):
        """As Keras's, which calls it where a variable is read."""
        is_weight = id(variable) in self._weights
        if is_weight and private_tensorflow.is_in_custom_gradient(variable):
            raise ValueError(
                f"Weight {variable.path!r} is used in a function with a "
                "gradient of its own (keras.remat, tf.recompute_grad, "
                "tf.custom_gradient): in a pipeline it would get no gradient. "
                "Use `recompute=True` of the pipeline instead, or hand the "
                "weight to the function as an argument."
            )
        return super().get_current_value(variable)


@contextlib.contextmanager
def functions_as_python():
    """Within it, an eager stage calls functions of layers without a trace.

    A `tf.function` would keep the weights of its first trace for good.
    """
    if not tf.executing_eagerly():
        yield
        return
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)
