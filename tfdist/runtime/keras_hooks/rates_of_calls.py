"""Learning rates that the chief has set in calls of `fit` that are over.

A chief that is started again passes these calls: its script would go on with
the rates that it began with.
"""

from tfdist.cluster import shared_record

# Calls of which rates are kept, the last ones.
_MOST_CALLS = 100


class RatesOfCalls:
    """The chief's rates by call, on the first server while its process lives.

    Args:
      store: The `ParameterStore`.
      membership: The `Membership`.
    """

    def __init__(self, store, membership):
        self._store = store
        self._membership = membership
        self._record = None
        # Whether this process has come to a call that it trains in.
        self._has_resumed = False

    def note(self, fit, rates):
        """Takes note of the rates with which the chief ends a call.

        Args:
          fit: The `FitCall`.
          rates: Tuple of floats.
        """
        if not rates or rates == fit.first_rates:
            return

        def put(record, now):
            del now
            record[str(fit.number)] = rates
            for old in list(record)[:-_MOST_CALLS]:
                del record[old]

        self._store.call(self._kept().change, put)

    def resume(self, fit, takes_no_step):
        """Sets the rates that a former process of the chief had in a call.

        Called in each call, before callbacks see that training begins.

        Args:
          fit: The `FitCall`.
          takes_no_step: Whether this process passes it.
        """
        fit.find_rates()
        fit.first_rates = fit.own_rates()
        former = self._membership.former
        if former is None or self._has_resumed:
            return
        self._has_resumed = not takes_no_step
        rates = ()
        if former.word.number == fit.number:
            rates = former.word.rates
        if not rates and takes_no_step:
            record = self._store.call(self._kept().read)
            rates = record.get(str(fit.number), ())
        fit.resume_rates(rates)

    def _kept(self):
        if self._record is None:
            self._record = shared_record.SharedRecord(
                self._store.name_of("rates_of_calls"),
                self._store.devices[0],
                self._store.worker_device,
            )
        return self._record
