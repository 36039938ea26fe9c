"""Variables go where the layers are that they belong to."""

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.placement import layers


def settle(model):
    """Moves variables, and what the optimizer keeps for them, to their layers.

    Args:
      model: A model whose layers have been given devices. What is not built
        has no variables yet: call this again when it has, before anything
        that uses them is traced.

    Raises:
      ValueError: A variable of a `tf.distribute` strategy that decides by
        itself where its variables are.
    """
    model_parts = layers.parts(model)
    moves = _moves(model_parts, _homes(model_parts))
    for variable, device in moves:
        private_tensorflow.move_variable(variable, device)
    if moves and model.compiled:
        _move_slots(model.optimizer, moves)


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
        device = homes[first.path]
        variable = claims[0][1]
        value = variable.value
        if device is None or getattr(value, "device", "") == device:
            continue
        if not _is_plain(value):
            raise ValueError(
                f"Variable {variable.path!r} belongs to a tf.distribute "
                f"strategy ({type(value).__name__}), which decides where it "
                "is."
            )
        moves.append((variable, device))
    return moves


def _is_in_a_part(part, claims):
    """Whether the variable is rather that of a layer that `part` is made of."""
    prefix = f"{part.path}/" if part.path else ""
    return any(
        other is not part and other.path.startswith(prefix)
        for other, _ in claims
    )


def _is_plain(value):
    return hasattr(value, "move_replica") or not isinstance(
        value, tf.distribute.DistributedValues
    )


def _move_slots(optimizer, moves):
    """Moves what an optimizer keeps for variables that have moved."""
    while optimizer is not None:
        if optimizer.built:
            _move_own_slots(optimizer, moves)
            private_tensorflow.know_moved_variables(optimizer)
        optimizer = getattr(optimizer, "inner_optimizer", None)


def _move_own_slots(optimizer, moves):
    devices_of = {
        variable.path.replace("/", "_"): device for variable, device in moves
    }
    for slot in optimizer.variables:
        names = [
            name for name in devices_of if slot.name.startswith(f"{name}_")
        ]
        # A parameter server's slots are beside what they belong to.
        if names and not hasattr(slot.value, "move_replica"):
            private_tensorflow.move_variable(
                slot, devices_of[max(names, key=len)]
            )
