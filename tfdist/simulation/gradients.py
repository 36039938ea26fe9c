"""Gradients of virtual workers, each from parameters of its own."""

import inspect

import keras
import numpy as np
import tensorflow as tf


class Gradients:
    """Builds gradients of a model, in traced functions.

    Each is that of Keras's own training step, computed from the parameters
    that its worker was given.

    Args:
      model: The compiled `keras.Model`; its variables are only read.
      data: A `Data`.
    """

    def __init__(self, model, data):
        self._model = model
        self._data = data
        call = inspect.signature(model.call).parameters
        self._arguments = {"training": True} if "training" in call else {}
        self._clip = _take_clipping(model.optimizer)

    def build(self, parameters, state, rows):
        """Builds one gradient.

        Args:
          parameters: List of tensors, the trainable variables' values.
          state: List of tensors, those of the other variables.
          rows: Int64 vector, which examples.

        Returns:
          The gradients, a list of tensors, `tf.IndexedSlices` or None; what
          the step makes of `state`, where the tensors of variables that the
          model does not assign are those that came; and the loss.
        """
        model = self._model
        x, y, weights = self._data.take(rows)
        variables = [*model.trainable_variables, *model.non_trainable_variables]
        mapping = [
            *zip(variables, [*parameters, *state], strict=True),
            *((v, tf.identity(v.value)) for v in model.metrics_variables),
        ]
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            with keras.StatelessScope(mapping, collect_losses=True) as scope:
                outputs = model(x, **self._arguments)
                loss = model.compute_loss(
                    x=x,
                    y=y,
                    y_pred=outputs,
                    sample_weight=weights,
                    training=True,
                )
        gradients = tape.gradient(loss, parameters)
        state = [
            tf.convert_to_tensor(scope.get_current_value(variable))
            for variable in model.non_trainable_variables
        ]
        return self._clip(gradients), state, loss


def _take_clipping(optimizer):
    """Has workers clip instead of the optimizer, as on a cluster they do.

    Args:
      optimizer: A Keras optimizer; it does not clip any more.

    Returns:
      A callable of a list of gradients.
    """
    norm, optimizer.clipnorm = optimizer.clipnorm, None
    total, optimizer.global_clipnorm = optimizer.global_clipnorm, None
    value, optimizer.clipvalue = optimizer.clipvalue, None

    def each(clip):
        return lambda gradients: [
            None if g is None else clip(g) for g in gradients
        ]

    if norm:
        return each(lambda gradient: tf.clip_by_norm(gradient, norm))
    if total:
        return lambda gradients: tf.clip_by_global_norm(gradients, total)[0]
    if value:
        return each(lambda g: tf.clip_by_value(g, -value, value))
    return lambda gradients: gradients


def num_bytes(variables):
    """Bytes of variables' values, int."""
    return int(
        sum(np.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)
    )
