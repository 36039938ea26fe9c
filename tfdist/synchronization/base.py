"""The base of synchronization methods."""

import abc

from tfdist import comparable
from tfdist.synchronization.state import State


class Synchronization(comparable.Comparable, abc.ABC):
    """Decides over gradients that arrive, one cluster at a time.

    A worker's gradient arrives, is decided over at once or later, and the
    worker waits until it has been told to go on. All decisions are made in
    one place and in one order, that of the log in `state.State`; every server
    carries them out in that order.

    Attributes:
      waits: Whether a worker may have to wait after its gradient arrived.
      averages: Whether an update may be made of several gradients.
      drops: Whether a gradient may be dropped.
      retries: Whether a batch is then computed again.
      ordered: Whether servers have to agree on one order of decisions; else
        each applies what arrives at once.
      takes_all: Whether each update is the mean of one gradient of every
        worker, whatever comes, which all-reduce makes as well.
    """

    waits = False
    averages = False
    drops = False
    retries = False
    ordered = True
    takes_all = False

    @property
    def is_synchronous(self) -> bool:
        """Whether all gradients of an update are of the same parameters."""
        return self.waits and self.averages

    def resolve(self, num_workers: int) -> "Synchronization":
        """Checks the settings against the size of the cluster.

        Args:
          num_workers: Number of workers, the chief among them.

        Returns:
          The method with all settings known, this or another instance.

        Raises:
          ValueError: They do not fit together.
        """
        return self

    def alone(self) -> "Synchronization":
        """The method for one process without a cluster, for a notebook.

        Returns:
          The method, this or another instance.
        """
        return self

    def gradients_per_update(self, num_workers: int) -> int:
        """Most gradients that an update takes, 0 if that is not fixed.

        Args:
          num_workers: Workers that take part.
        """
        return 0

    @abc.abstractmethod
    def decide(self, state: State) -> State:
        """Decides all that can be decided.

        Called after each event: a gradient has arrived, a worker has left or
        is not waited for any more.

        Args:
          state: A `State`.

        Returns:
          The new `State`.
        """
