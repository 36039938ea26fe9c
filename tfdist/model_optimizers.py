"""Optimizers of a Keras model, which may have several."""

import collections
import json

import keras
import tensorflow as tf

from tfdist import dynamic_subclasses
from tfdist import private_keras
from tfdist import private_keras_building

_KEEPS = "_tfdist_keeps_weights"
# Their variables hold what weights have been made of: a step overwrites these.
# Older versions of Keras have the first alone.
_COMPUTES_WEIGHTS = tuple(
    getattr(keras.optimizers, name)
    for name in ("Ftrl", "ScheduleFreeAdamW")
    if hasattr(keras.optimizers, name)
)


def optimizers_of(model):
    """Returns the optimizers among a model's attributes, each once, a list.

    Those in nested lists, tuples and dicts, too. One that has others (a
    `LossScaleOptimizer`, a `MultiOptimizer`, one of the user's own) comes
    before them.

    Args:
      model: A `keras.Model`.
    """
    found = []
    _collect(list(vars(model).values()), found)
    return found


def update_rules_of(model):
    """Returns those of `optimizers_of` that are no wrappers, a list.

    A wrapper has a learning rate, too, which is never used.

    Args:
      model: A `keras.Model`.
    """
    return _rules(optimizers_of(model))


def rates_of(optimizers):
    """Returns the learning rates of optimizers and all within them, a list.

    Each once, a Keras variable; a schedule has none.

    Args:
      optimizers: A Keras optimizer, a list of them, or None.
    """
    found = []
    _collect(optimizers, found)
    variables = [v for one in _rules(found) for v in one.variables]
    rates = {id(v): v for v in variables if v.name == "learning_rate"}
    return list(rates.values())


def holds_others(optimizer):
    """Whether an optimizer holds others, to which it may leave its steps."""
    found = []
    _collect(optimizer, found)
    return len(found) > 1


def slots_of(optimizer):
    """Returns (slot, variable) of all that an optimizer keeps for variables.

    Only names tell which slot belongs to which variable. Two variables of one
    path have slots of one name, which Keras makes in the variables' order.

    Args:
      optimizer: A Keras optimizer that is no wrapper; if it is not built, the
        list is empty.
    """
    trained = collections.defaultdict(list)
    for variable in private_keras.trained_by(optimizer):
        if not isinstance(variable, keras.Variable):
            continue  # A `tf.Variable`, which no layer has.
        trained[variable.path.replace("/", "_")].append(variable)
    slots, seen = [], collections.Counter()
    for slot in optimizer.variables:
        paths = [path for path in trained if slot.name.startswith(f"{path}_")]
        if paths:
            owners = trained[max(paths, key=len)]
            slots.append((slot, owners[seen[slot.name] % len(owners)]))
            seen[slot.name] += 1
    return slots


def others_of(model):
    """Returns those of `update_rules_of` that `compile` was not given, a list.

    With those of layers and models within a model that has a `train_step` of
    its own: it may train each with the optimizer that this one holds, or was
    compiled with.

    Args:
      model: A `keras.Model`.
    """
    rules = update_rules_of(model)
    if private_keras_building.has_own_train_step(model):
        for layer in private_keras.with_sublayers(model):
            rules += update_rules_of(layer)
    compiled = _compiled(model)
    return [
        rule
        for rule in {id(rule): rule for rule in rules}.values()
        if all(rule is not one for one in compiled)
    ]


def averages_weights(model):
    """Whether `fit` ends by putting averages of a model's weights in place.

    Those of the compiled optimizer: Keras knows of no other.
    """
    return any(
        getattr(one, "use_ema", False)
        for one in _compiled(model)
        if _wrapped_by(one) is None
    )


def check_scope(model):
    """Refuses an optimizer that was made outside the scope of its model.

    A `train_step` of the user's own need not use the compiled optimizer: its
    optimizers are checked in the step.

    Args:
      model: A `keras.Model` that is in `fit`, made under a strategy.

    Raises:
      ValueError: It was.
    """
    if not private_keras_building.has_own_train_step(model):
        check_scope_of(model)


def check_scope_of(model):
    """The same for a model whose step uses the compiled optimizer."""
    for one in _compiled(model):
        strategy = private_keras.strategy_of_optimizer(one)
        if strategy is not model.distribute_strategy:
            raise ValueError(
                "The optimizer of `fit` must be made, and the model compiled, "
                "inside the scope of the strategy that the model was made "
                "under. Move the line that makes the optimizer, and "
                "`model.compile(...)`, below `with strategy.scope():`. "
                f"Received: optimizer {one.name!r}, made outside "
                "strategy.scope()"
            )


def build(model):
    """Builds the optimizer that a model is compiled with, if that is not done.

    With all variables that the model can train: its first step may train fewer.

    Args:
      model: A `keras.Model` whose layers are built, made under a strategy.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)


def finalize_when_built(model):
    """Lets `fit` end without a step of the compiled optimizer, if not built.

    Keras asks it for its averages then, which it has not made.

    Args:
      model: A `keras.Model`.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        dynamic_subclasses.specialize(optimizer, _FinalizedWhenBuilt)


class _FinalizedWhenBuilt:
    """A mixin: an optimizer that may be unused when `fit` ends."""

    def finalize_variable_values(self, var_list):
        """As Keras's; nothing if it is not built."""
        if self.built:
            super().finalize_variable_values(var_list)


def keep_weights(model, keeps):
    """Sets whether `fit` ends with the weights as they are.

    Keras puts averages in their place, also where it has trained nothing.

    Args:
      model: A `keras.Model`.
      keeps: Whether it does.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not (keeps or _KEEPS in vars(optimizer)):
        return
    dynamic_subclasses.specialize(optimizer, _FinalizedUnlessKept)
    vars(optimizer)[_KEEPS] = keeps


class _FinalizedUnlessKept:
    """A mixin: an optimizer that may leave weights as they are."""

    def finalize_variable_values(self, var_list):
        """As Keras's; nothing if `keep_weights` says so."""
        if not vars(self)[_KEEPS]:
            super().finalize_variable_values(var_list)


def check_adds_updates(optimizer, method):
    """Refuses an optimizer that undoes what other workers do to weights.

    Args:
      optimizer: A Keras optimizer.
      method: Name of the method that lets workers do so, for messages.

    Raises:
      NotImplementedError: It computes weights from variables of its own.
    """
    found = []
    _collect(optimizer, found)
    for one in found:
        if isinstance(one, _COMPUTES_WEIGHTS):
            raise NotImplementedError(
                f"With {method} other workers change weights as well, and an "
                "optimizer that computes weights from variables of its own "
                "undoes their updates: use one that adds an update to the "
                "weights, such as Adam or SGD. Received: "
                f"{one.name!r} of class {type(one).__name__}."
            )


def described(optimizers):
    """Returns classes and settings of optimizers but for rates, a string.

    Args:
      optimizers: List of Keras optimizers.
    """
    return "; ".join(
        _text(
            _config_of(one, keras.saving.serialize_keras_object),
            has_schedules=False,
        )
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
        config = _config_of(optimizer, lambda one: one.get_config())
    return _text(config, has_schedules=True)


def _config_of(optimizer, save):
    """Returns what `save` does, or else the optimizer's plain attributes.

    Training needs no config of a schedule of the user's own. That of a
    function has the values of the variables that it uses.

    Args:
      optimizer: A Keras optimizer.
      save: Callable that returns its config, a dict.
    """
    parts = []
    _collect(optimizer, parts)
    if not any(map(private_keras.has_rate_function, parts)):
        try:
            return save(optimizer)
        except Exception:  # Of all kinds: `get_config` may be the user's.
            pass
    wrapped = _wrapped_by(optimizer) or []
    plain = {
        key: value
        for key, value in vars(optimizer).items()
        if isinstance(value, bool | int | float | str | None)
        and not key.startswith("_")
        and key != "built"
    }
    return {
        # Not `type`, which may be a specialized class.
        "class_name": optimizer.__class__.__name__,
        "config": plain,
        "optimizers": [_config_of(one, save) for one in wrapped],
    }


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


def _compiled(model):
    """The optimizer that `compile` was given, and those that it wraps."""
    found = []
    _collect(getattr(model, "optimizer", None), found)
    return found


def _collect(value, found):
    if isinstance(value, keras.optimizers.Optimizer):
        if not any(value is other for other in found):
            found.append(value)
            _collect(_wrapped_by(value), found)
            # One of the user's own may leave steps to others.
            _collect(list(vars(value).values()), found)
    elif isinstance(value, dict):
        _collect(list(value.values()), found)
    elif isinstance(value, list | tuple):
        for part in value:
            _collect(part, found)


def _rules(optimizers):
    return [one for one in optimizers if _wrapped_by(one) is None]


def _wrapped_by(optimizer):
    """The optimizers that one wraps, a list; None if it is no wrapper.

    A `MultiOptimizer` whose rules are a function has none before it is built.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return [inner]
    # A `MultiOptimizer`, which older versions of Keras do not have.
    return getattr(optimizer, "optimizers", None)
