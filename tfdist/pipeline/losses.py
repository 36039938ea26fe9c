"""The loss of a compiled model, computed for one micro-batch at a time."""

import contextlib
import inspect

import keras
from keras import tree
import tensorflow as tf

from tfdist import private_keras
from tfdist.pipeline import micro_batches

_MEANS = ("sum_over_batch_size", "mean")


def compute(model, x, y, y_pred, sample_weight):
    """Returns `model.compute_loss` of a training step, a scalar.

    An override may leave out the argument `training`.
    """
    arguments = {"x": x, "y": y, "y_pred": y_pred}
    arguments["sample_weight"] = sample_weight
    if "training" in inspect.signature(model.compute_loss).parameters:
        arguments["training"] = True
    return model.compute_loss(**arguments)


def compute_of_outputs(model, y, y_pred, sample_weight):
    """Returns the loss where gradients reach weights through outputs alone.

    A stage that updates by itself gets its gradient from its outputs and from
    the regularizers of its weights, and from nothing else of the loss.

    Args:
      model: A compiled `keras.Model`.
      y: A structure of targets, or None.
      y_pred: The model's outputs.
      sample_weight: A structure of tensors, or None.

    Raises:
      ValueError: The loss depends on a trainable weight in another way.
    """
    weights = model.trainable_weights
    with (
        tf.GradientTape(watch_accessed_variables=False) as tape,
        _constant_regularizers(weights),
    ):
        tape.watch([weight.value for weight in weights])
        loss = compute(model, None, y, y_pred, sample_weight)
    gradients = tape.gradient(loss, [weight.value for weight in weights])
    for weight, gradient in zip(weights, gradients, strict=True):
        if gradient is not None:
            raise ValueError(
                f"The loss of model {model.name!r} depends on the weight "
                f"{weight.path!r} by itself, not through the model's outputs. "
                "With this schedule, such a term would not be trained: give "
                "the layer a regularizer, or use schedule='gpipe'."
            )
    return loss


@contextlib.contextmanager
def _constant_regularizers(weights):
    """Within it, no gradient passes through what regularizers compute."""
    own = [(w, w.regularizer) for w in weights if w.regularizer is not None]
    for weight, regularizer in own:
        weight.regularizer = _constant(regularizer)
    try:
        yield
    finally:
        for weight, regularizer in own:
            weight.regularizer = regularizer


def _constant(regularizer):
    return lambda weight: regularizer(tf.stop_gradient(weight))


def reduction_of(model):
    """Reduction of the losses of examples to that of a compiled model.

    Args:
      model: A compiled `keras.Model`.

    Returns:
      "mean" or "sum".

    Raises:
      ValueError: The loss of a batch does not follow from those of its
        micro-batches: `compute_loss` is overridden, or a loss has another
        reduction, or losses of several outputs have different ones.
    """
    if not micro_batches.is_stock(model, "compute_loss"):
        raise ValueError(
            f"{type(model).__name__}.compute_loss is the model's own. With "
            "this schedule a backward pass begins before the whole batch "
            "has been seen, and how such a loss is made of micro-batches "
            "cannot be known: use schedule='gpipe', which computes the loss "
            "once for the whole batch."
        )
    found = {}
    for loss in tree.flatten(model.loss):
        if loss is not None:
            loss = keras.losses.get(loss)
            name = getattr(loss, "reduction", "sum_over_batch_size")
            kind = "mean" if name in _MEANS else name
            if kind not in ("mean", "sum"):
                raise ValueError(
                    f"The reduction {name!r} of the loss {loss!r} cannot be "
                    "computed from micro-batches one by one: use one of "
                    f"{', '.join(map(repr, (*_MEANS, 'sum')))}, or "
                    "schedule='gpipe'."
                )
            found[kind] = loss
    if len(found) > 1:
        raise ValueError(
            "Argument `loss` of `compile` must be means alone or sums alone "
            "with this schedule; use schedule='gpipe', or the same reduction. "
            f"Received: loss={model.loss!r}"
        )
    return next(iter(found), "mean")


def check_per_example(loss, y, y_pred):
    """Refuses losses that give one number for all examples together.

    Whether that is a mean or a sum cannot be known.

    Args:
      loss: As in `model.compile`.
      y: A structure of targets.
      y_pred: A structure of outputs.

    Raises:
      ValueError: There is such a loss, or a function for which the targets
        and outputs that it is given cannot be told.
    """
    losses = tree.flatten(loss)
    targets, outputs = tree.flatten(y), tree.flatten(y_pred)
    if len(losses) == 1:
        losses *= len(outputs)
    matched = len(losses) == len(targets) == len(outputs)
    for index, own in enumerate(losses):
        if own is None:
            continue
        own = keras.losses.get(own)
        if not matched:
            if _is_keras(own):
                continue
            raise ValueError(
                f"The loss {own!r} is a function, and with this schedule "
                "it must be clear which target and output it is given: give "
                "loss, y and outputs the same structure, or use "
                "schedule='gpipe'."
            )
        dtype = getattr(own, "dtype", keras.config.floatx())
        values = getattr(own, "call", own)(
            keras.ops.convert_to_tensor(targets[index], dtype=dtype),
            keras.ops.convert_to_tensor(outputs[index], dtype=dtype),
        )
        if private_keras.mask_of(values) is not None:
            raise ValueError(
                f"The loss {own!r} leaves out some elements (ignore_class), "
                "so that its mean over a micro-batch is over another number "
                "than its examples: use schedule='gpipe'."
            )
        if values.shape.rank == 0:
            raise ValueError(
                f"The loss {own!r} gives one number for a micro-batch, of "
                "which a pipeline with this schedule cannot know whether "
                "it is a mean or a sum: return one for each example, or use "
                "schedule='gpipe'."
            )


def _is_keras(loss):
    name = getattr(loss, "__module__", type(loss).__module__)
    return name.partition(".")[0] == "keras"
