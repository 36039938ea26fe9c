"""One step between exchanges: what `Local` does where K = 1."""

from tfdist.runtime.exchange import step


class EveryStep:
    """See `Local`, whose part it takes where each step is exchanged.

    Args:
      runtime: The `Runtime`.
    """

    # Replicas hold what servers gave, and nothing else.
    keeps_own_values = False
    keeps_own = False
    has_begun = False
    inners = ()

    def __init__(self, runtime):
        self._runtime = runtime

    def role_of(self, role, made_by_optimizer):
        """The role of a variable: the one that it has."""
        del made_by_optimizer
        return role

    def new_step(self, arguments):
        """A `Step` to record a call of `strategy.run` while it is traced."""
        del arguments
        return step.Step(self._runtime)

    def steps_made(self):
        """Optimizer steps that have been made, an int."""
        return max(self._runtime.updates_applied())

    def is_open(self):
        """Whether others may wait for this worker, where only it knows."""
        return False

    def unpushed(self):
        """Whether there are steps that no server has heard of."""
        return False

    def has_progressed(self):
        """Whether there are more of them than at the last call."""
        return False

    def before_pull(self):
        """Whether all replicas may be refreshed."""
        return True

    def shadows(self):
        """Pairs of a variable and its other value, a list."""
        return []

    # What `Local` sees to around steps.

    def watch(self, call, frame):
        """Does nothing."""

    def call_in_fit(self, call, function, *args):
        """Calls a `train_function` of Keras by `call`."""
        return call(function, *args)

    def flush(self, last=False):
        """Does nothing."""

    def finish(self):
        """Does nothing."""

    def drop_unpushed(self):
        """Does nothing."""

    def show_anchor(self):
        """Does nothing."""

    def after_first_pull(self, variables):
        """See `Local.after_first_pull`."""

    def after_pull(self):
        """Does nothing."""

    def adopt_given(self):
        """Does nothing."""

    def before_read(self, variable):
        """Does nothing."""

    def after_write(self, variable):
        """Does nothing."""

    def tidy(self):
        """Does nothing."""

    def let_go(self, ordinals):
        """Does nothing."""
