"""Calls of methods of Keras models whose overrides may lack `training`."""

import inspect


def call(compute_loss, x, y, y_pred, sample_weight, training=True):
    """Calls a model's `compute_loss` as Keras's own steps do.

    Args:
      compute_loss: A bound method; an override may leave out `training`, and
        name the others as it likes.
      x: Inputs.
      y: Targets.
      y_pred: Outputs.
      sample_weight: Of the examples, or None.
      training: Whether it is the loss of a training step.

    Returns:
      The loss, a scalar tensor.
    """
    named = {"training": training} if takes_training(compute_loss) else {}
    return compute_loss(x, y, y_pred, sample_weight, **named)


def takes_training(function):
    """Whether a function has an argument `training`."""
    return "training" in inspect.signature(function).parameters
