"""Local steps exchanged through parameter servers."""

import contextlib
import dataclasses

from tfdist.runtime.coordination import agreement
from tfdist.runtime.exchange import step as step_lib


@dataclasses.dataclass
class Round:
    """One exchange that is being built.

    Attributes:
      takes_part: Whether this worker has taken steps.
    """

    takes_part: bool


class ServerCommunication:
    """Exchanges of local steps with the servers, by each worker alone.

    `RingCommunication` has the same methods, for workers without servers. A
    `Local` calls them, and hands itself in as `local`.

    Args:
      store: The `ParameterStore`.
      coordination: The `Coordination`.
      method: The `LocalSteps`, resolved.
      synchronization: The `Synchronization`, resolved.
      has_others: Whether other workers train.
    """

    def __init__(
        self, store, coordination, method, synchronization, *, has_others
    ):
        self._store = store
        self._coordination = coordination
        self._has_others = has_others
        self._method = method
        self._averages = synchronization.averages

    # First values: the servers have them.

    def before_variable(self):
        """Called before a variable is made, outside of steps."""

    def meeting(self):
        """Scope of an optimizer's beginning, within which Ctrl-C may wait."""
        return contextlib.nullcontext()

    def begin(self, local, optimizer, clock):
        """Called before an optimizer's first step; all workers begin alike.

        Args:
          local: The `Local`.
          optimizer: The Keras optimizer.
          clock: The optimizer's step counter.

        Raises:
          ValueError: Another worker trains in another way.
        """
        mine = f"local_steps={local.method!r}"
        # Over the loss of servers: a step that is traced again would have
        # another outer optimizer.
        theirs = self._store.call(
            agreement.agree,
            self._store,
            "lock",
            f"local/{clock.ordinal}",
            mine,
        )
        if mine != theirs:
            raise ValueError(
                f"All workers must train in the same way. Here {mine}, on the "
                f"servers {theirs}."
            )

    def check_eager(self):
        """Refuses eager steps where they cannot be exchanged: not here."""

    def note_data(self, checksum, is_seed):
        """Takes note of the data of a call: servers tell of the chief's."""

    def begin_fit(self, local, call, frame):
        """Called when a call of `fit` has begun, maybe within another one.

        Args:
          local: The `Local`.
          call: Its `RunningFit`.
          frame: Its frame.
        """

    def call_in_fit(self, local, function, *args):
        """Calls a `train_function` of `fit`; what is left is sent at its end.

        Others wait for it, and nobody knows when the script will do something
        that asks for it.

        Args:
          local: The `Local`.
          function: Callable of `args`.
          *args: What Keras hands it.
        """

        def end():
            local.flush(last=True)
            # Steps that come now are of a loop of the user's own.
            local.fit = None

        if local.fit is not None:
            local.fit.before_end(end)
        return function(*args)

    # An exchange.

    def build_round(self, inner):
        """Builds the beginning of an exchange of this worker's steps.

        Args:
          inner: The `Inner` that has taken them.

        Returns:
          A `Round`.
        """
        return Round(takes_part=True)

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
        # The servers combine what they are sent.
        return records, sent

    def exchange(self, inner, this_round, **kwargs):
        """Returns the builder of an exchange.

        Args:
          inner: The `Inner`.
          this_round: The `Round`.
          **kwargs: See `ExchangeBuilder`.
        """
        weight = None
        if self._averages and self._method.weighted:
            weight = inner.weight()
        return self._coordination.exchange(weight=weight, **kwargs)

    # Outside of steps.

    def before_pull(self, local):
        """Called before all replicas are refreshed.

        Returns:
          Whether they may be: not in the middle of a period within `fit`.
        """
        if local.is_training() and local.unpushed():
            local.show_anchor()
            return False
        # Nothing tells whether a training loop of the user's own goes on.
        self.flush(local, last=local.fit is not None)
        return True

    def flush(self, local, last):
        """Exchanges the steps that no exchange was due for.

        Args:
          local: The `Local`.
          last: Whether this worker trains no more for now, so that nobody
            waits for it.
        """
        local.show_anchor()
        self._flush(local, local.inners, last)

    def finish(self, local, meets=False):
        """Called when this worker waits for all others to end training."""
        self.flush(local, last=True)

    def has_left(self, local):
        """Whether an ended `fit` has steps that are not exchanged yet."""
        return local.unpushed()

    def is_open(self, local):
        """Whether others may wait for this worker, where only it knows."""
        return False  # The servers know.

    def release(self, local, inners):
        """Exchanges what optimizers have left that nobody uses any more.

        Args:
          local: The `Local`.
          inners: List of their `Inner`.

        Returns:
          Whether they may be let go of.
        """
        are_waited_for = self._has_others and self._coordination.waits
        in_fit = are_waited_for and local.is_training()
        if in_fit and any(one.has_steps() for one in inners):
            # The end of `fit` exchanges them. Now the others would go on
            # without this worker's steps of other optimizers.
            return False
        local.show_anchor()
        self._flush(local, inners, last=True)
        return True

    def _flush(self, local, inners, last):
        left = [one for one in inners if one.has_steps()]
        if last and left:
            # Or two workers with steps of different optimizers left would
            # wait for each other.
            self._coordination.leave_all_but(
                [step_lib.step_counter(inner.outer) for inner in left]
            )
        for inner in left:
            if inner.has_steps():
                local.exchange_left(inner, last)
