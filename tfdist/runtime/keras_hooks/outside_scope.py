"""Refusal of models that were made outside `strategy.scope()`, on a cluster.

Such a model would train on each worker alone, without a word: its `fit` asks no
strategy for anything. But `fit` makes variables (an optimizer's slots, those of
metrics), and TensorFlow asks scopes of variable creators for these, of which
one is left open here. `fit` of plain SGD without metrics makes none, and is not
seen.
"""

import tensorflow as tf

from tfdist import private_keras
from tfdist import private_keras_calls

_open = []


def refuse_to_fit():
    """Refuses, from now on, `fit` of models that no strategy knows of."""
    if not _open:
        scope = tf.variable_creator_scope(_check_and_create)
        scope.__enter__()
        _open.append(scope)


def _check_and_create(next_creator, **kwargs):
    frame = private_keras_calls.fit_under_way()
    if frame is not None:
        _check(private_keras_calls.model_of(frame))
    return next_creator(**kwargs)


def _check(model):
    """Refuses a model that was made outside of all scopes.

    Args:
      model: A `keras.Model` that is in `fit`.

    Raises:
      ValueError: It was.
    """
    if private_keras.strategy_of(model) is not None:
        return
    raise ValueError(
        "The model of `fit` must be built and compiled inside "
        "`strategy.scope()`: on a cluster this one would train on each worker "
        "by itself, and nobody would share its parameters. Move the line that "
        f"makes it, and `model.compile(...)`, below `with strategy.scope():`. "
        "(A model that is meant to train on this worker alone goes into the "
        'scope of `tf.distribute.OneDeviceStrategy("/cpu:0")`.) Received: '
        f"{type(model).__name__} {getattr(model, 'name', '')!r}, made outside"
    )
