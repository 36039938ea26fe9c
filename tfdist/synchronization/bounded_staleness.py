"""A fast worker may run ahead of the slowest by so many steps."""

import tensorflow as tf

from tfdist import checks
from tfdist.synchronization import base
from tfdist.synchronization.state import State


class BoundedStaleness(base.Synchronization):
    """Stale synchronous parallel: bounded distance between workers.

    Ho et al., "More effective distributed ML via a stale synchronous parallel
    parameter server", NIPS 2013. A worker that has finished c steps starts
    the next one once every other live worker has finished at least
    `c - max_staleness`; its own gradient becomes part of the parameters at
    that moment, together with all that came before. So at step c it sees

    - all gradients of steps up to c - max_staleness - 1, of all workers,
    - all of its own (read-my-writes),
    - of the others at most those of step c + max_staleness - 1.

    With 0 the workers move in lock-step: each step is computed from exactly
    the gradients of all steps before. Gradients are applied one by one, not
    averaged: with N workers a step moves N times as far as with `Sync`.

    Args:
      max_staleness: Steps by which a worker may be ahead, 0 or more.
    """

    waits = True

    def __init__(self, max_staleness: int = 3):
        max_staleness = checks.count(
            "BoundedStaleness: max_staleness", max_staleness, 0
        )
        self.max_staleness = max_staleness

    def decide(self, state: State) -> State:
        ahead = state.clock - state.slowest_clock()
        released = tf.logical_and(state.arrived, ahead <= self.max_staleness)
        # One that does not count holds its worker back all the same: how far
        # the others have come is what it waits for.
        state = state.drop(released & state.unusable)
        released &= state.arrived
        state = state.append(released, first=1, count=1)
        return state.grant(released)
