"""No decisions: every gradient counts when it arrives, as in `Async`."""

from tfdist.runtime.exchange import exchange


class NoCoordination:
    """See `Coordination`, whose part it takes where nobody decides.

    Args:
      gradient_counts: The `GradientCounts`: servers count by themselves.
      journal: The `Journal`.
    """

    ledgers = ()
    # Nobody waits for the gradients of others, and none is dropped.
    waits = False
    has_log = False
    is_synchronous = False
    retries = False

    def __init__(self, gradient_counts, journal):
        self._gradient_counts = gradient_counts
        self._journal = journal

    def exchange(self, **kwargs):
        """The exchange of one step, an `ExchangeBuilder`."""
        return exchange.ExchangeBuilder(**kwargs)

    def counts(self):
        """Gradients of each worker, see `Coordination.counts`."""
        return self._gradient_counts.read()

    def own_applied(self):
        """By server: what was applied of this process, and passed it by."""
        applied = self._gradient_counts.applied()
        return applied, self._journal.elsewhere

    def waited_for(self):
        """Names of the workers whose gradients this one waits for now."""
        return []

    def build_retire(self, names):
        """Builds nothing: servers keep their counts."""
        del names
        return []

    # Nobody is told that this worker comes or goes.

    def watch(self, call, frame):
        """Does nothing."""

    def tick(self):
        """Does nothing."""

    def leave(self):
        """Does nothing."""

    def leave_if_over(self):
        """Does nothing."""

    def leave_all_but(self, counters):
        """Does nothing."""

    def stay_away(self):
        """Does nothing."""

    def come_back(self):
        """Does nothing."""

    def renew(self, incarnations, expected):
        """Does nothing."""

    def let_go(self, ordinals):
        """Does nothing."""

    def were_freed(self, ordinals):
        """Does nothing."""
