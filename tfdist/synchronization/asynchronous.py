"""Every gradient is an update when it arrives."""

from tfdist.synchronization import base
from tfdist.synchronization.state import State


class Async(base.Synchronization):
    """Asynchronous SGD: nobody waits, nothing is dropped.

    Dean et al., "Large scale distributed deep networks", NIPS 2012, section
    4.1. Each server applies what arrives at once; no decision is needed that
    the servers would have to agree on.
    """

    ordered = False

    def decide(self, state: State) -> State:
        state = state.drop(state.unusable)
        arrived = state.arrived
        state = state.append(arrived, first=1, count=1)
        return state.grant(arrived)
