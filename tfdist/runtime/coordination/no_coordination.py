"""No decisions: every gradient counts when it arrives, as in `Async`."""

from tfdist.null_methods import empty_list
from tfdist.null_methods import nothing
from tfdist.runtime.exchange import exchange


class NoCoordination:
    """See `Coordination`, whose part it takes where nobody decides.

    Args:
      gradient_counts: The `GradientCounts`: servers count by themselves.
      journal: The `Journal`.
    """

    ledgers = ()
    # Nobody waits for the gradients of others, and none is dropped.
    is_behind = False
    waits = False
    has_log = False
    averages = False
    is_synchronous = False
    retries = False
    waited_for = empty_list
    # Servers keep their counts.
    build_retire = empty_list
    # Nobody is told that this worker comes or goes.
    watch = tick = leave = leave_if_over = leave_all_but = nothing
    stay_away = come_back = renew = let_go = were_freed = nothing
    # There is no ledger.
    prepare = nothing

    def __init__(self, gradient_counts, journal):
        self._gradient_counts = gradient_counts
        self._journal = journal

    def exchange(self, **kwargs):
        return exchange.ExchangeBuilder(**kwargs)

    def counts(self):
        return self._gradient_counts.read()

    def own_applied(self):
        applied = self._gradient_counts.applied()
        return applied, self._journal.elsewhere
