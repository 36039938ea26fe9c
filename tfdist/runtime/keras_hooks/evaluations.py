"""Assignments during an evaluation or a prediction, which stay on a worker.

Callbacks put other weights in place to look at them (`SwapEMAWeights`), and
put back what was there. Servers, which others change meanwhile, hear of
neither; when the call ends, the replicas hold again what they held before.
From one epoch to the next that cannot be: updates of others are in between.
"""

import keras

from tfdist import own_callbacks
from tfdist import private_keras_calls
from tfdist import running_fit
from tfdist.null_methods import nothing
from tfdist.runtime.variables.server_scope import read_replica


def of(config, show_anchor):
    """Returns the evaluations of one task.

    Servers outlive also an only worker that is killed while a callback has
    other weights in place.

    Args:
      config: Its `ClusterConfig`.
      show_anchor: See `OwnEvaluations`.
    """
    if config.num_ps or config.num_workers > 1 or not config.is_worker:
        is_alone = config.num_workers == 1
        return OwnEvaluations(show_anchor, is_alone=is_alone)
    return SharedEvaluations()


class OwnEvaluations:
    """The evaluations and predictions of one worker beside servers or others.

    Args:
      show_anchor: Callable that makes the replicas hold what the servers gave
        last, which is evaluated, and not a worker's weights between exchanges.
      is_alone: Whether no other worker trains.
    """

    # Whether what they assign is this worker's own.
    are_own = True

    def __init__(self, show_anchor, *, is_alone=False):
        self._show_anchor = show_anchor
        self.is_alone = is_alone
        # The call of which assignments are known; None without any.
        self._call = None
        # By id, variables that it has assigned, and their values before.
        self._before = {}

    def check(self, callbacks):
        """Refuses callbacks that swap weights from one epoch to the next.

        Args:
          callbacks: What `fit` was given.

        Raises:
          ValueError: There is one.
        """
        if self.is_alone:
            return
        for callback in own_callbacks.listed(callbacks):
            if (
                isinstance(callback, keras.callbacks.SwapEMAWeights)
                and callback.swap_on_epoch
            ):
                raise ValueError(
                    "Argument `swap_on_epoch` of SwapEMAWeights must be False "
                    "where several workers share parameters: what others push "
                    "between two epochs would be lost when weights are "
                    "swapped back. Received: swap_on_epoch=True"
                )

    def keep(self, variable):
        """Called before a variable is assigned eagerly.

        Returns:
          Whether the assignment is this worker's own.
        """
        self.restore_if_over()
        frame = private_keras_calls.evaluation()
        if frame is None:
            return False
        if self._call is None:
            self._begin(frame)
        self._show_anchor()
        if id(variable) not in self._before:
            self._before[id(variable)] = variable, read_replica(variable)
        return True

    @property
    def has_values(self):
        """Whether this worker holds values that an evaluation has assigned."""
        return bool(self._before)

    def holds(self, variable):
        """Whether an evaluation has assigned `variable` on this worker."""
        return id(variable) in self._before

    def _begin(self, frame):
        self._call = running_fit.RunningFit(frame)
        callbacks = private_keras_calls.callbacks_of(frame)
        if isinstance(callbacks, keras.callbacks.CallbackList):
            ends = ["on_test_end", "on_predict_end"]
            own_callbacks.at_end(callbacks, ends, self._restore)

    def restore_if_over(self):
        """Called where the call may have ended, by an exception for example."""
        if self._call is not None and self._call.is_over():
            self._restore()

    def restore_before(self, frame):
        """Called when a call begins, by its frame: one before it has ended."""
        if self._call is not None and not self._call.is_around(frame):
            self._restore()

    def _restore(self):
        before, self._before, self._call = self._before, {}, None
        self._show_anchor()
        for variable, value in before.values():
            variable.assign_replica(value)


class SharedEvaluations:
    """Those of a single process: all that they assign stays."""

    are_own = False
    is_alone = True
    has_values = False
    check = restore_if_over = restore_before = nothing

    def keep(self, variable):
        return False

    # What they have assigned, servers hold as well.
    holds = keep


class EvaluationStep:
    """A step of an evaluation, which changes nothing but replicas.

    See `Step`, whose part it takes.

    Args:
      is_eager: Whether it runs eagerly.
    """

    is_local = True
    is_training = False
    may_be_repeated = False
    before_mutation = assigned = reduced = finish = nothing

    def __init__(self, is_eager):
        self.is_eager = is_eager

    def update(self, variable, fn, args, kwargs):
        """Updates the replica."""
        fn(variable, *args, **kwargs)
