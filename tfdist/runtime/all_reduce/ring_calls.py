"""Calls of workers without servers, of which one may be lost."""

from tfdist.runtime.recovery import no_recovery


class RingCalls(no_recovery.NoRecovery):
    """See `Recovery`: there is none, but the error names the lost worker.

    Args:
      collectives: The `Collectives`.
      num_servers: How many stand in for servers.
    """

    # The calls of `fit` go through `call`.
    is_needed = True

    def __init__(self, collectives, num_servers):
        super().__init__(num_servers)
        self._collectives = collectives

    def call(self, function, *args):
        """Calls a function, and explains errors of its collectives."""
        return self._collectives.call(function, *args)
