"""Variables go where the layers are that they belong to."""

import tensorflow as tf

from tfdist import model_optimizers
from tfdist import one_replica
from tfdist import private_keras
from tfdist.placement import devices
from tfdist.placement import layers


def settle(model):
    """Moves variables, and what the optimizer keeps for them, to their layers.

    Args:
      model: A model whose layers have been given devices. What is not built
        has no variables yet: call this again when it has, before anything
        that uses them is traced.
    """
    model_parts = layers.parts(model)
    homes = _homes(model_parts)
    for variable, device in _moves(model_parts, homes):
        private_keras.move_variable(variable, device)
    for optimizer in model_optimizers.update_rules_of(model):
        _settle_slots(optimizer)


def check(model, chosen):
    """Refuses a model whose variables are not ours to move.

    Args:
      model: A model that is to be placed.
      chosen: A dict from the paths of its parts to devices.

    Raises:
      ValueError: It was made under a `tf.distribute` strategy that decides by
        itself where variables are: any but tfdist's, and those of tfdist whose
        workers exchange gradients or updates without servers, unless all is
        and stays on the device on which TensorFlow runs what has none.
    """
    strategy = private_keras.strategy_of(model)
    if not strategy:
        return
    extended = strategy.extended
    if isinstance(extended, one_replica.OneReplicaExtended) and (
        extended.lets_variables_move or _stays(model, chosen)
    ):
        return
    raise ValueError(
        f"Model {model.name!r} belongs to a tf.distribute strategy, "
        f"{type(strategy).__name__}, which decides where its variables are: "
        "make it without one, or under one of tfdist's with parameter "
        'servers or communication="ring", or PipelineStrategy.'
    )


def _stays(model, chosen):
    """Whether all of a model stays on this process's default device."""
    model_parts = layers.parts(model)
    return set(chosen.values()) <= {devices.default()} and not _moves(
        model_parts, _homes(model_parts) | chosen
    )


def _homes(model_parts):
    """Path -> the device that a part is on, its own or its parent's."""
    homes = {}
    for part in model_parts:
        inherited = homes.get(part.parent)
        homes[part.path] = layers.device_of(part.layer) or inherited
    return homes


def _moves(model_parts, homes):
    """(variable, device) for each variable that is not where it should be.

    A variable of several layers (tied weights) goes with the first of them.
    """
    owners = {}
    # Own variables first: a parent's list has those of its parts as well.
    for part in reversed(model_parts):
        for variable in getattr(part.layer, "variables", ()):
            owners.setdefault(id(variable), []).append((part, variable))
    moves = []
    for claims in owners.values():
        own = [part for part, _ in claims if not _is_in_a_part(part, claims)]
        first = min(own, key=model_parts.index)
        variable = claims[0][1]
        if not homes[first.path]:
            continue
        dtype = tf.as_dtype(variable.dtype)
        device = devices.of_variable(homes[first.path], dtype)
        if getattr(variable.value, "device", "") != device:
            moves.append((variable, device))
    return moves


def _is_in_a_part(part, claims):
    """Whether the variable is rather that of a layer that `part` is made of."""
    prefix = f"{part.path}/" if part.path else ""
    return any(
        other is not part and other.path.startswith(prefix)
        for other, _ in claims
    )


def _settle_slots(optimizer):
    """Moves what an optimizer keeps for variables to where they are."""
    for slot, variable in model_optimizers.slots_of(optimizer):
        home = getattr(variable.value, "device", "")
        # A parameter server's slots are beside what they belong to.
        if not home or hasattr(slot.value, "move_replica"):
            continue
        home = devices.of_variable(home, tf.as_dtype(slot.dtype))
        if slot.value.device != home:
            private_keras.move_variable(slot, home)
