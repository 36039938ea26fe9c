"""Values that are assigned before and between calls of `fit`.

What the chief assigns before a call of `fit` comes after all that anybody has
pushed in the one before, and all begin with it.
"""

from absl import logging

from tfdist import model_optimizers
from tfdist.cluster import waiting
from tfdist.runtime.keras_hooks import weight_changes
from tfdist.runtime.variables.variables import Role

_WEIGHTS = (Role.PARAMETER, Role.STATE)


class ValuesBetween:
    """Assignments of one worker before, between and after calls of `fit`.

    Args:
      runtime: The `Runtime`.
      turns: The `FitTurns`.
      is_chief: Whether servers get what this worker assigns.
      start_timeout: Seconds to wait for the chief's first values.

    Attributes:
      wrote: Whether this worker has assigned what servers hold, since it took
        their values over last.
      has_set: Whether weights were among it, and no step of `fit` has come
        since.
    """

    def __init__(self, runtime, turns, is_chief, start_timeout):
        self._runtime = runtime
        self._turns = turns
        self._is_chief = is_chief
        self._start_timeout = start_timeout
        self._changes = weight_changes.WeightChanges()
        # Whether the last call has ended by assigning averages of weights.
        self._has_averaged = False
        self.wrote = self.has_set = False
        self._has_warned = False

    # The calls.

    def call_to_end(self, model, number):
        """The call that all are to end before the chief begins; 0 for none.

        The one before, where workers wait for each other, and where each ends
        it by assigning averages of weights (`use_ema`), over the chief's next
        steps. Else the last that changed weights which this one keeps (those
        of frozen layers): the chief would see nothing new of them.

        Args:
          model: The `keras.Model` of the call that is to begin.
          number: The number of that call.
        """
        averages = (
            model_optimizers.averages_weights(model) or self._has_averaged
        )
        if self._runtime.coordination.waits or averages:
            return number - 1
        return self._changes.last_of_kept(model)

    def begin(self, model, number):
        """Called when the steps of a call begin; see `WeightChanges`."""
        self._changes.begin(model, number)

    def end(self, model, number, averages=False):
        """Called when they have ended, or have been passed.

        Args:
          model: The `keras.Model`; None if it is gone.
          number: The number of the call.
          averages: Whether workers end it by assigning averages of weights.
        """
        self._has_averaged = averages
        self._changes.end(model, number)

    # Assignments.

    def note_write(self, variable):
        """Takes note that what servers hold is about to be assigned.

        Args:
          variable: The `ReplicaVariable`.

        Returns:
          Whether servers are to get it, if they get it from this worker.
        """
        self.wrote = True
        passes = self._is_chief and self._runtime.synchronizer.writes_pass
        if not (passes and self.is_of_former_life()):
            self.has_set |= variable.role in _WEIGHTS
            return True
        if not self._has_warned:
            self._has_warned = True
            logging.warning(
                "Variable %r was assigned by a chief that was started again: "
                "the servers keep their value, which is newer, and this worker "
                "takes it over when `fit` begins.",
                variable.name,
            )
        return False

    def is_of_former_life(self):
        """Whether this worker comes back to a `fit` that others train in.

        Until its first step its script does what it did before the training;
        but a checkpoint that it has put over theirs is newer.
        """
        if self._runtime.state.is_on_servers:
            return False
        has_come_back = self._runtime.has_come_back()
        return has_come_back and self._turns.position(1) != (0, 0)

    def are_earlier(self, begun):
        """Whether servers' first values may be from before a call of `fit`.

        The chief may set others until it begins it. Waits for first values,
        as the first step would, or until the chief begins.

        Args:
          begun: The beginning of the chief's call, of `fit_progress`.
        """
        if self._runtime.committed:
            return True
        has_begun = False

        def look():
            nonlocal has_begun
            has_begun = self._turns.chief().word.reached >= begun
            return has_begun or self._runtime.store.call(self._runtime.is_held)

        waiting.wait_until(
            look,
            what="the chief to initialise the variables of this model",
            timeout=self._start_timeout,
            hint="Is the chief running, and does it build this model?",
        )
        return not has_begun

    def take_over(self):
        """Takes over what servers hold, to train on it."""
        self._runtime.pull()
        self._runtime.store.call(self._runtime.show_ahead)
        self.wrote = False
