"""Gradients of virtual workers, each from parameters of its own."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from tfdist import compute_loss
from tfdist import one_replica

CHUNKS = (8, 4, 2, 1)
"""Sizes in which gradients are computed together, each a trace."""


class Gradients:
    """Builds gradients of a model, in traced functions.

    Each is that of Keras's own training step, computed from the parameters
    that its worker was given.

    Args:
      model: The compiled `keras.Model`; its variables are only read.
      data: A `Data`.
      clips: Whether gradients are clipped as the model's optimizer says: on a
        cluster workers clip.
    """

    def __init__(self, model, data, clips=True):
        self._model = model
        self._data = data
        self._clip = _clipping(model.optimizer) if clips else None

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
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            loss, state = _forward(
                self._model, self._data, parameters, state, rows
            )
        gradients = tape.gradient(loss, parameters)
        if self._clip is not None:
            gradients = self._clip(gradients)
        return gradients, state, loss


def _forward(model, data, parameters, state, rows):
    """Returns the loss, and what the step makes of `state`."""
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    mapping = [
        *zip(variables, [*parameters, *state], strict=True),
        *((v, tf.identity(v.value)) for v in model.metrics_variables),
    ]
    with keras.StatelessScope(mapping, collect_losses=True) as scope:
        loss = loss_of(model, *data.take(rows))
    return loss, [
        tf.convert_to_tensor(scope.get_current_value(variable))
        for variable in model.non_trainable_variables
    ]


def loss_of(model, x, y, weights=None):
    """Builds the loss of a batch, as Keras's own training step does.

    Args:
      model: The compiled `keras.Model`; its `call` and `compute_loss` need not
        take `training`.
      x: Examples.
      y: Labels.
      weights: Of the examples, or None.

    Returns:
      A scalar tensor.
    """
    takes = compute_loss.takes_training(model.call)
    outputs = model(x, **({"training": True} if takes else {}))
    return compute_loss.call(model.compute_loss, x, y, outputs, weights)


def assigned(model, data):
    """Finds out which variables a training step assigns.

    For that it traces a forward pass.

    Args:
      model: The compiled `keras.Model`.
      data: A `Data`.

    Returns:
      Set of places in `model.non_trainable_variables`.
    """
    found = set()

    def note(parameters, before, rows):
        _, after = _forward(model, data, parameters, before, rows)
        found.update(
            place
            for place, pair in enumerate(zip(before, after, strict=True))
            if pair[0] is not pair[1]
        )

    _trace(model, data, note)
    return found


def row_bytes(model, data):
    """Finds out which gradients are of some rows alone (`tf.IndexedSlices`).

    For that it traces a forward and a backward pass.

    Args:
      model: The compiled `keras.Model`.
      data: A `Data`.

    Returns:
      Dict of places in `model.trainable_variables` to the bytes of these rows
      and of their numbers, where the batch's size tells how many there are.
    """
    found = {}

    def note(parameters, state, rows):
        gradients, _, _ = Gradients(model, data).build(parameters, state, rows)
        for place, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                parts = [gradient.values, gradient.indices]
                if all(part.shape.is_fully_defined() for part in parts):
                    found[place] = num_bytes(parts)

    _trace(model, data, note)
    return found


def _trace(model, data, note):
    """Traces a step; `note` is given all values, and the rows of a batch."""

    def step(rows):
        parameters, state = (
            [tf.identity(variable.value) for variable in variables]
            for variables in (
                model.trainable_variables,
                model.non_trainable_variables,
            )
        )
        note(parameters, state, rows)

    rows = tf.TensorSpec([data.batch_size], tf.int64)
    tf.function(step, autograph=False).get_concrete_function(rows)


def _clipping(optimizer):
    """Returns a callable of a list of gradients that clips as it would."""
    norm, value = optimizer.clipnorm, optimizer.clipvalue
    total = optimizer.global_clipnorm

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


def apply(optimizer, gradients, parameters, clips=False):
    """Builds a step of an optimizer with gradients as they are.

    They come from unscaled losses, and are clipped where they are computed.

    Args:
      optimizer: The Keras optimizer.
      gradients: One per parameter; a list of tensors, `tf.IndexedSlices` or
        None.
      parameters: List of trainable variables.
      clips: Whether it clips all the same.
    """
    with _taken_as_they_are(optimizer, clips), one_replica.stepping():
        optimizer.apply(gradients, parameters)


@contextlib.contextmanager
def _taken_as_they_are(optimizer, clips):
    """Scope in which it does not unscale gradients, nor clip unless told to."""
    names = ["loss_scale_factor"]
    if not clips:
        names += ["clipnorm", "global_clipnorm", "clipvalue"]
    kept = {name: getattr(optimizer, name) for name in names}
    try:
        for name in names:
            setattr(optimizer, name, None)
        yield
    finally:
        for name, value in kept.items():
            setattr(optimizer, name, value)


def num_bytes(variables):
    """Bytes of variables' values, int."""
    return int(
        sum(np.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)
    )
