"""The interface by which local steps of all workers come together.

Servers and all-reduce are two implementations of it: `ServerCommunication`,
and `RingCommunication` for methods that need no order of decisions.
"""

import abc
import dataclasses


@dataclasses.dataclass
class Round:
    """One exchange that is being built.

    Attributes:
      takes_part: Whether this worker has taken steps.
    """

    takes_part: bool


class Communication(abc.ABC):
    """The communication that a `Local` asks for, with the other workers."""

    # First values.

    @abc.abstractmethod
    def begin(self, local, optimizer, clock):
        """Called before an optimizer's first step; all workers begin alike.

        Args:
          local: The `Local`, as in all that follows.
          optimizer: The Keras optimizer.
          clock: The optimizer's step counter.

        Raises:
          ValueError: Another worker trains in another way.
        """

    @abc.abstractmethod
    def check_eager(self):
        """Called when an optimizer acts in a step that runs eagerly.

        Raises:
          ValueError: Such steps cannot be exchanged.
        """

    @abc.abstractmethod
    def begin_fit(self, local, call, frame):
        """Called when a call of `fit` has begun, maybe within another one.

        Args:
          local: The `Local`.
          call: Its `RunningFit`.
          frame: Its frame.
        """

    @abc.abstractmethod
    def call_in_fit(self, local, function, *args):
        """Calls a `train_function` of `fit`; sees to the end of the call.

        Args:
          local: The `Local`.
          function: Callable of `args`.
          *args: What Keras hands it.
        """

    # An exchange, of gradients or of parameters: what is built in a graph.

    @abc.abstractmethod
    def build_round(self, inner):
        """Builds the beginning of an exchange of this worker's steps.

        Args:
          inner: The `Inner` that has taken them.

        Returns:
          A `Round`.
        """

    @abc.abstractmethod
    def combine(self, inner, records, sent, this_round, finite):
        """Builds what becomes of records before they are applied.

        Args:
          inner: The `Inner`.
          records: List of `Update`, of one tensor each.
          sent: The tensors that they have.
          this_round: The `Round`.
          finite: Whether what this worker has done is, a scalar bool tensor;
            None if nobody has looked.

        Returns:
          Such a list, and the tensors that its members have.
        """

    @abc.abstractmethod
    def exchange(self, inner, this_round, **kwargs):
        """Returns the builder of an exchange.

        Args:
          inner: The `Inner`.
          this_round: The `Round`.
          **kwargs: See `ExchangeBuilder`.
        """

    # Outside of steps.

    @abc.abstractmethod
    def before_pull(self, local):
        """Called before all replicas are refreshed.

        Returns:
          Whether they may be: not in the middle of a period within `fit`.
        """

    @abc.abstractmethod
    def flush(self, local, last):
        """Exchanges the steps that no exchange was due for.

        Args:
          local: The `Local`.
          last: Whether this worker trains no more for now, so that nobody
            waits for it.
        """

    @abc.abstractmethod
    def finish(self, local):
        """Called when this worker waits for all others to end training."""

    @abc.abstractmethod
    def has_left(self, local):
        """Whether an ended `fit` has steps that are not exchanged yet."""

    @abc.abstractmethod
    def is_open(self, local):
        """Whether others may wait for this worker, where only it knows."""

    @abc.abstractmethod
    def release(self, local, inners):
        """Exchanges what optimizers have left that nobody uses any more.

        Args:
          local: The `Local`.
          inners: List of their `Inner`.

        Returns:
          Whether they may be let go of.
        """
