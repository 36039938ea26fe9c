"""Gradients of tables: by rows, summed by id, applied by Keras's own rule."""

import weakref

from absl import logging
import keras
import tensorflow as tf

from tfdist import fused_kernels
from tfdist.runtime.variables import routes

_OF_WHOLE_VARIABLES = tuple(
    getattr(keras.optimizers, name)
    for name in ("Adafactor", "Lamb", "Muon")
    if hasattr(keras.optimizers, name)
)
# Classes of optimizers that a warning has named.
_warned = weakref.WeakSet()


def needs_whole(optimizer):
    """Whether an optimizer's rule looks at more than single elements."""
    return isinstance(optimizer, _OF_WHOLE_VARIABLES)


def warn_of_own_rule(optimizer, variable, what):
    """Warns of a rule of the user's own that is applied to parts of a variable.

    Args:
      optimizer: The Keras optimizer.
      variable: The variable.
      what: What the rule is applied to, a phrase.
    """
    rule = type(optimizer)
    module = getattr(rule.update_step, "__module__", "keras")
    if module.partition(".")[0] in ("keras", "tfdist") or rule in _warned:
        return
    _warned.add(rule)
    logging.warning(
        "The update_step of %s is applied to %s of %r. It must update each "
        "element for itself: what it computes of a whole gradient or variable "
        "(a norm, a mean) would be that of a part.",
        rule.__name__,
        what,
        variable.name,
    )


def checked(table, fn, args):
    """Returns the arguments of an update of a table, as they are pushed.

    Args:
      table: The `TableVariable`.
      fn: What Keras gives to `strategy.extended.update`.
      args: Its arguments: the gradient first.

    Returns:
      The same, with a gradient that has each id once; None if nothing is to be
      done.

    Raises:
      ValueError: It is no update by rows.
    """
    optimizer = fused_kernels.optimizer_of(fn)
    if needs_whole(optimizer):
        raise table.refusal(
            f"the update rule of {type(optimizer).__name__}, which looks at "
            "whole variables"
        )
    if optimizer is not None:
        warn_of_own_rule(optimizer, table, "rows")
    if not args:
        try:
            # Weight decay; it does nothing to variables that it excludes.
            fn(table)
        except ValueError as error:
            raise table.refusal(
                "weight_decay of the optimizer, of all rows (leave the table "
                "out by exclude_from_weight_decay)"
            ) from error
        return None
    gradient, *rest = args
    if not isinstance(gradient, tf.IndexedSlices):
        raise table.refusal(
            "a gradient of all rows (of a look-up in a loop or in "
            "keras.ops.map, or by global_clipnorm, which makes it dense)"
        )
    return _summed(gradient), *rest


def _summed(slices):
    """Sums those `tf.IndexedSlices` that are of one id.

    A table that is looked up several times in a step has several.
    """
    is_built = not tf.executing_eagerly()
    if is_built and routes.origin(slices.indices).op.type == "Unique":
        return slices  # Of one look-up.
    ids, where = tf.unique(slices.indices)
    values = routes.summed(slices.values, where, tf.size(ids))
    return tf.IndexedSlices(values, ids, slices.dense_shape)


def apply(record, piece, args, section):
    """Builds an update of the part of a table that is on one server.

    Args:
      record: The `Update`.
      piece: The `TablePiece`.
      args: Of the update, on the server: the gradient first.
      section: The `ServerScope`.
    """
    table = record.variable
    gradient, *rest = args
    if table.is_dynamic:
        gradient = table.build_admission(gradient, section)
    elif table.rule == "dense":
        dense = routes.summed(gradient.values, gradient.indices, piece.rows)
        shape = table.shape_of(piece)
        fused_kernels.update(table, record.fn, (dense, *rest), {}, shape=shape)
        return
    with section.on_rows(gradient.indices):
        record.fn(table, gradient.values, *rest)
