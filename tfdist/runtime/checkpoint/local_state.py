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
    pairs, kept = {}, local.keeps_own
    for inner in local.inners:
        pairs.update(_done(inner))
        kept = kept or inner.has_steps()
    if kept:
        for inner in local.inners:
            pairs.update(own_weights(local, inner.held))
    return {name: read_replica(one).numpy() for name, one in pairs.items()}


def of_inner(local, inner):
    """All that is saved of one optimizer, a dict of name to variable.

    Args:
      local: The `Local`, whose replicas show what the servers gave last.
      inner: The `Inner`.
    """
    return {**_done(inner), **own_weights(local, inner.held)}


def own_weights(local, variables):
    """Own values and anchors of variables, a dict of name to variable."""
    pairs = {}
    for variable in variables:
        pairs[own_name(variable)] = local.shadow(variable)
        pairs[f"{PREFIX}anchor/{variable.ordinal}"] = variable
    return pairs


def own_name(variable):
    """The name of a variable's own value."""
    return f"{PREFIX}own/{variable.ordinal}"


def _done(inner):
    """Counts and sums of an `Inner`, a dict of name to variable."""
    prefix = f"{PREFIX}{inner.clock.ordinal}"
    pairs = {f"{prefix}/{name}": getattr(inner, name) for name in _COUNTERS}
    for ordinal, total in inner.accrued.items():
        pairs[f"{prefix}/accrued/{ordinal}"] = total
    return pairs


def put(local, pairs, arrays):
    """Puts back what `read` gave.

    Args:
      local: The `Local`.
      pairs: Dict of name to variable.
      arrays: Dict of name to array; others stay as they are.
    """
    local.show_anchor()
    for name, variable in pairs.items():
        if name in arrays:
            value = tf.constant(arrays[name], variable.dtype)
            variable.assign_replica(value)
