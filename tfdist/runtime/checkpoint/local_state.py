"""Local steps since a worker's last exchange, as part of a saved state."""

import tensorflow as tf

from tfdist.runtime.variables.server_scope import read_replica

PREFIX = "local_steps/"
_COUNTERS = ("since_push", "since_fetch", "examples")


def read(local):
    """This worker's own weights, sums and counts.

    Args:
      local: The `Local`, whose replicas show what the servers gave last.

    Returns:
      A dict of name to array. Own weights are not part of it where they are
      what the servers gave.
    """
    arrays, kept = {}, local.keeps_own
    for inner in local.inners:
        prefix = f"{PREFIX}{inner.clock.ordinal}"
        for name in _COUNTERS:
            arrays[f"{prefix}/{name}"] = getattr(inner, name).numpy()
        for ordinal, total in inner.accrued.items():
            arrays[f"{prefix}/accrued/{ordinal}"] = total.numpy()
        kept = kept or arrays[f"{prefix}/since_push"] > 0
    if kept:
        for variable, shadow in local.shadows():
            ordinal = variable.ordinal
            arrays[f"{PREFIX}own/{ordinal}"] = read_replica(shadow).numpy()
            anchor = read_replica(variable).numpy()
            arrays[f"{PREFIX}anchor/{ordinal}"] = anchor
    return arrays


def put(local, arrays):
    """Puts back what `read` gave.

    Args:
      local: The `Local`, which has begun to train.
      arrays: Dict of name to array.
    """
    local.show_anchor()
    for inner in local.inners:
        prefix = f"{PREFIX}{inner.clock.ordinal}"
        pairs = {f"{prefix}/{n}": getattr(inner, n) for n in _COUNTERS}
        for ordinal, total in inner.accrued.items():
            pairs[f"{prefix}/accrued/{ordinal}"] = total
        _assign(pairs, arrays)
    for variable, shadow in local.shadows():
        ordinal = variable.ordinal
        _assign({f"{PREFIX}own/{ordinal}": shadow}, arrays)
        _assign({f"{PREFIX}anchor/{ordinal}": variable}, arrays)


def _assign(pairs, arrays):
    for name, variable in pairs.items():
        if name in arrays:
            value = tf.constant(arrays[name], variable.dtype)
            variable.assign_replica(value)
