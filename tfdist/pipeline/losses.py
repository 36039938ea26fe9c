"""The loss of a compiled model, computed for one micro-batch at a time."""

import contextlib

import keras
from keras import tree
import tensorflow as tf

from tfdist import compute_loss
from tfdist import private_keras
from tfdist.pipeline import micro_batches

_MEANS = ("sum_over_batch_size", "mean")
_KEEP_BATCH_AXIS = (
    "Do not flatten the batch and other axes into one (of sequences, say): "
    "keep the batch axis first, or use schedule='gpipe'."
)


def compute_of_outputs(model, y, y_pred, sample_weight):
    """Computes the loss where gradients reach weights through outputs alone.

    A stage that updates by itself gets its gradient from its outputs and from
    the regularizers of its weights, and from nothing else of the loss.

    Args:
      model: A compiled `keras.Model`.
      y: A structure of targets, or None.
      y_pred: The model's outputs.
      sample_weight: A structure of tensors, or None.

    Returns:
      The loss, and what of it is of regularizers: a list of tensors.

    Raises:
      ValueError: The loss depends on a trainable weight in another way, or
        leaves out a regularizer.
    """
    weights = model.trainable_weights
    values = [weight.value for weight in weights]
    with (
        tf.GradientTape(watch_accessed_variables=False) as tape,
        _constant_regularizers(weights, tape) as penalties,
    ):
        tape.watch(values)
        loss = compute_loss.call(
            model.compute_loss, None, y, y_pred, sample_weight
        )
    gradients, of_penalties = tape.gradient(loss, (values, penalties))
    for weight, gradient in zip(weights, gradients, strict=True):
        if gradient is not None:
            raise ValueError(
                f"The loss of model {model.name!r} depends on the weight "
                f"{weight.path!r} by itself, not through the model's outputs. "
                "With this schedule, such a term would not be trained: give "
                "the layer a regularizer, or use schedule='gpipe'."
            )
    for weight, found in zip(weights, of_penalties, strict=True):
        if weight.regularizer and all(g is None for g in found):
            raise ValueError(
                f"{type(model).__name__}.compute_loss leaves out the "
                f"regularizer of the weight {weight.path!r}. With this "
                "schedule, it would be trained all the same: add all of "
                "`self.losses`, or use schedule='gpipe'."
            )
    return loss, tree.flatten(penalties)


@contextlib.contextmanager
def shown_of_batch(model, count, share):
    """Within it, losses of several outputs are sums over a part of a batch.

    Keras shows the mean of such values. Those that are shown after it are
    weighted with examples, and have the batch's sum as mean, as `loss` has.

    Args:
      model: A compiled `keras.Model`.
      count: Number of the part's examples, an integer tensor [].
      share: Which part of the batch's examples they are, a float tensor [].
    """
    mapping = [
        (variable, tf.zeros([], variable.dtype))
        for tracker in private_keras.output_loss_trackers(model)
        for variable in (tracker.total, tracker.count)
    ]
    # Keras looks for what regularizers are given in the scope alone.
    mapping += [(weight, weight.value) for weight in model.trainable_weights]
    scope = keras.StatelessScope(mapping)
    with scope:
        yield
    # Keras may have made them meanwhile.
    for tracker in private_keras.output_loss_trackers(model):
        total, weight = map(
            scope.get_current_value, (tracker.total, tracker.count)
        )
        # Keras leaves those of several losses of one output as they are.
        examples = tf.cast(count, total.dtype) * tf.sign(weight)
        mean = tf.math.divide_no_nan(total, weight)
        of_batch = mean / tf.cast(share, total.dtype)
        tracker.total.assign_add(of_batch * examples)
        tracker.count.assign_add(examples)


@contextlib.contextmanager
def _constant_regularizers(weights, tape):
    """Within it, no gradient passes through what regularizers compute.

    Yields:
      A list for each weight, of what its regularizer has computed.
    """
    before = [weight.regularizer for weight in weights]
    penalties = [[] for _ in weights]
    for weight, own, found in zip(weights, before, penalties, strict=True):
        if own is not None:
            weight.regularizer = _constant(own, tape, found)
    try:
        yield penalties
    finally:
        for weight, own in zip(weights, before, strict=True):
            weight.regularizer = own


def _constant(regularizer, tape, found):
    def penalty(weight):
        value = tf.convert_to_tensor(regularizer(tf.stop_gradient(weight)))
        tape.watch(value)
        found.append(value)
        return value

    return penalty


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


def check(model, y, y_pred):
    """Refuses a compiled model with losses that `check_per_example` refuses."""
    # A Sequential model may have no names of outputs.
    names = getattr(model, "output_names", None)
    check_per_example(model.loss, y, y_pred, names)


def check_per_example(loss, y, y_pred, output_names=None):
    """Refuses losses of which a micro-batch's value is not of its examples.

    Whether a number for all examples together is a mean or a sum cannot be
    known. Where shapes are known only in the step, it checks them then.

    Args:
      loss: As in `model.compile`.
      y: A structure of targets.
      y_pred: A structure of outputs.
      output_names: Those of the model, in the order of its outputs.

    Raises:
      ValueError: There is such a loss, or a function for which the targets
        and outputs that it is given cannot be told.
    """
    for own, target, output in _given(loss, y, y_pred, output_names):
        if own is None:
            continue
        own = keras.losses.get(own)
        if isinstance(own, keras.losses.Circle) or own is keras.losses.circle:
            raise ValueError(
                f"The loss {own!r} compares the examples of a batch with each "
                "other, and with this schedule it would see those of a "
                "micro-batch alone: use schedule='gpipe'."
            )
        if target is None:
            _check_unpaired(own)
        else:
            _check_values(own, target, output)


def _given(loss, y, y_pred, names=None):
    """(loss, target, output) of each loss, paired as Keras pairs them.

    Target and output are None where the structures do not say them.
    """
    if names and not isinstance(y_pred, dict):
        loss, y = _in_order(loss, names), _in_order(y, names)
    if (keys := _shared_keys(loss, y, y_pred)) is not None:
        return [
            item
            for key in keys
            for item in _given(loss[key], y[key], y_pred[key])
        ]
    own, targets, outputs = map(tree.flatten, (loss, y, y_pred))
    if not tree.is_nested(loss):
        own *= len(outputs)
    elif len(targets) == len(outputs) == 1:
        # Several losses of one output.
        targets, outputs = targets * len(own), outputs * len(own)
    if not len(own) == len(targets) == len(outputs):
        targets = outputs = [None] * len(own)
    return list(zip(own, targets, outputs, strict=True))


def _in_order(structure, names):
    """A dict by names of outputs as a list, anything else as it is."""
    if isinstance(structure, dict) and set(structure) == set(names):
        return [structure[name] for name in names]
    return structure


def _shared_keys(loss, y, y_pred):
    """Keys of losses of parts of `y` and `y_pred`; None if there are none."""
    if all(isinstance(part, dict) for part in (loss, y, y_pred)):
        return loss.keys() if loss.keys() <= y.keys() & y_pred.keys() else None
    if all(isinstance(part, (list, tuple)) for part in (loss, y, y_pred)):
        return range(len(loss)) if len(loss) <= len(y) == len(y_pred) else None
    return None


def _check_unpaired(loss):
    """Refuses a loss, given it is not known what, that may not be right."""
    may_be_over_all = (
        not _is_keras(loss)
        or isinstance(loss, (keras.losses.Dice, keras.losses.Tversky))
        or loss in (keras.losses.dice, keras.losses.tversky)
        or getattr(loss, "ignore_class", None) is not None
    )
    if may_be_over_all:
        raise ValueError(
            f"The loss {loss!r} may give one number for a micro-batch, and "
            "with this schedule it must be clear which target and output it "
            "is given: give loss, y and outputs the same structure, or use "
            "schedule='gpipe'."
        )


def _check_values(loss, target, output):
    """Refuses a loss that gives no value, or several, for each example."""
    dtype = getattr(loss, "dtype", keras.config.floatx())
    values = getattr(loss, "call", loss)(
        keras.ops.convert_to_tensor(target, dtype=dtype),
        keras.ops.convert_to_tensor(output, dtype=dtype),
    )
    if private_keras.mask_of(values) is not None:
        raise ValueError(
            f"The loss {loss!r} leaves out some elements (ignore_class), "
            "so that its mean over a micro-batch is over another number "
            "than its examples: use schedule='gpipe'."
        )
    if values.shape.rank == 0:
        raise ValueError(
            f"The loss {loss!r} gives one number for a micro-batch, of "
            "which a pipeline with this schedule cannot know whether "
            "it is a mean or a sum: return one for each example, or use "
            "schedule='gpipe'."
        )
    first = values.shape[0]
    if first is not None and first not in (target.shape[0], output.shape[0]):
        raise ValueError(
            f"The loss {loss!r} gives values of shape {values.shape} for "
            f"outputs of shape {output.shape}, which are not one for each "
            "example, or several, along the first axis, as this schedule "
            f"needs them. {_KEEP_BATCH_AXIS}"
        )
    if first is None:
        tf.debugging.assert_equal(
            tf.shape(values)[0],
            tf.shape(output)[0],
            f"The loss {loss!r} must give a value, or several, for each "
            f"example, along the first axis. {_KEEP_BATCH_AXIS}",
        )


def _is_keras(loss):
    name = getattr(loss, "__module__", type(loss).__module__)
    return name.partition(".")[0] == "keras"
