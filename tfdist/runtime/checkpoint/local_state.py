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
            pairs.update(_own_weights(local, inner.held))
    return {name: read_replica(one).numpy() for name, one in pairs.items()}


class ResumedSteps:
    """Local steps of a saved state, which are taken up where they were.

    Functions are given the `Local`.

    Args:
      arrays: Those of a saved state, a dict of name to array; others than
        `read` gives are ignored.
      resumes: Whether this worker takes them up; else nobody does.
    """

    def __init__(self, arrays, resumes):
        self._arrays = {
            name: array
            for name, array in arrays.items()
            if name.startswith(PREFIX)
        }
        self._resumes = resumes
        # Names of own weights that were put back before their optimizer began.
        self._shown = set()

    def left(self, local):
        """Returns what is yet to be taken up, a dict of name to array."""
        is_kept = self._resumes or not local.has_begun
        return self._arrays if is_kept else {}

    def take_up(self, local):
        """Takes up the steps of each optimizer that has begun."""
        for inner in local.inners:
            pairs = {**_done(inner), **_own_weights(local, inner.held)}
            if self._arrays.keys().isdisjoint(pairs):
                continue
            if self._resumes:
                left = pairs.keys() - self._shown
                self._put(local, {name: pairs[name] for name in left})
            for name in pairs:
                self._arrays.pop(name, None)

    def show_own(self, local, variables):
        """Puts back own weights, before a step runs eagerly that may train.

        It computes gradients before its optimizer begins.

        Args:
          local: The `Local`.
          variables: All of the strategy's.

        Returns:
          Whether there were any.
        """
        if not self._resumes:
            return False
        names = self._arrays.keys() - self._shown
        found = [
            variable for variable in variables if _own_name(variable) in names
        ]
        if not found:
            return False
        # Before, own values and anchors are not told apart.
        local.show_own()
        pairs = _own_weights(local, found)
        self._put(local, pairs)
        self._shown |= pairs.keys()
        return True

    def _put(self, local, pairs):
        local.show_anchor()
        for name, variable in pairs.items():
            if name in self._arrays:
                value = tf.constant(self._arrays[name], variable.dtype)
                variable.assign_replica(value)


def _own_weights(local, variables):
    """Own values and anchors of variables, a dict of name to variable."""
    pairs = {}
    for variable in variables:
        pairs[_own_name(variable)] = local.shadow(variable)
        pairs[f"{PREFIX}anchor/{variable.ordinal}"] = variable
    return pairs


def _own_name(variable):
    """The name of a variable's own value."""
    return f"{PREFIX}own/{variable.ordinal}"


def _done(inner):
    """Counts and sums of an `Inner`, a dict of name to variable."""
    prefix = f"{PREFIX}{inner.clock.ordinal}"
    pairs = {f"{prefix}/{name}": getattr(inner, name) for name in _COUNTERS}
    for ordinal, total in inner.accrued.items():
        pairs[f"{prefix}/accrued/{ordinal}"] = total
    return pairs
