"""Optimizers of a Keras model, which may have several."""

import keras


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
