"""Optimizers of a Keras model, which may have several."""

import json

import keras
import tensorflow as tf


def optimizers_of(model):
    """Returns the optimizers among a model's attributes, each once, a list.

    Those in nested lists, tuples and dicts, too. One that wraps others (a
    `LossScaleOptimizer`, a `MultiOptimizer`) comes before them.

    Args:
      model: A `keras.Model`.
    """
    found = []
    _collect(list(vars(model).values()), found)
    return found


def update_rules_of(model):
    """Returns those of `optimizers_of` that wrap no others, a list.

    A wrapper has a learning rate, too, which is never used.

    Args:
      model: A `keras.Model`.
    """
    return [one for one in optimizers_of(model) if not _wrapped_by(one)]


def described(optimizers):
    """Returns classes and settings of optimizers but for rates, a string.

    Args:
      optimizers: List of Keras optimizers.
    """
    return "; ".join(
        _text(keras.saving.serialize_keras_object(one), has_schedules=False)
        for one in optimizers
    )


def settings_of(optimizer):
    """Returns what Keras builds an optimizer's step from, a string.

    These are its settings with the schedule of its rate, if it has one: a rate
    that is a number is in a variable.

    Args:
      optimizer: A Keras optimizer, or None.
    """
    if optimizer is None:
        return ""
    # Keras reads the rate, which it cannot in a graph.
    with tf.init_scope():
        return _text(optimizer.get_config(), has_schedules=True)


def _text(config, has_schedules):
    config = _without_rates(config, has_schedules)
    return json.dumps(config, sort_keys=True, default=str)


def _without_rates(part, has_schedules):
    if isinstance(part, list | tuple):
        return [_without_rates(one, has_schedules) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _without_rates(value, has_schedules)
        for key, value in part.items()
        if key not in ("name", "registered_name")
        and (
            key != "learning_rate"
            or (has_schedules and not isinstance(value, float))
        )
    }


def _collect(value, found):
    if isinstance(value, keras.optimizers.Optimizer):
        if not any(value is other for other in found):
            found.append(value)
            _collect(_wrapped_by(value), found)
    elif isinstance(value, dict):
        _collect(list(value.values()), found)
    elif isinstance(value, list | tuple):
        for part in value:
            _collect(part, found)


def _wrapped_by(optimizer):
    """The optimizers that one wraps, a list."""
    inner = getattr(optimizer, "inner_optimizer", None)
    # A `MultiOptimizer`, which older versions of Keras do not have.
    return (
        [inner] if inner is not None else getattr(optimizer, "optimizers", [])
    )
