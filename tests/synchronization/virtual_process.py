"""One worker's process on a virtual cluster."""

import dataclasses

import numpy as np

from tfdist.synchronization import state as state_lib


@dataclasses.dataclass
class Process:
    """One worker's process.

    Attributes:
      parameters: Its replica, vector.
      pulled: The version of it.
      steps: Gradients computed by all its lives.
      computing: Whether it computes one, or waits.
      decision: The `State` that it was told of, to be carried out, or None.
      unread: Servers that are still to carry it out.
      alive: Whether there is a process.
      stopped: Whether it does nothing for now.
      left: Whether it has run out of data.
      lives: How many processes it has been.
    """

    parameters: np.ndarray
    pulled: int = 0
    steps: int = 0
    computing: bool = True
    decision: state_lib.State | None = None
    unread: list = dataclasses.field(default_factory=list)
    alive: bool = True
    stopped: bool = False
    left: bool = False
    lives: int = 1

    @property
    def runs(self):
        """Whether it is heard of."""
        return self.alive and not self.stopped
