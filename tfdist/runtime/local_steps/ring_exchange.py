"""The exchange of workers in a ring: each updates a copy of its own."""

import dataclasses

from tfdist.runtime.exchange import exchange


class RingExchange(exchange.ExchangeBuilder):
    """Exchange of a ring: each worker has its own copy of all parameters.

    Args:
      this_round: The `RingRound`.
      **kwargs: See `ExchangeBuilder`.
    """

    def __init__(self, this_round, **kwargs):
        super().__init__(**kwargs)
        self._round = this_round

    def _started(self):
        return self._round.began

    def _gate(self):
        # All make the same update, also who has nothing that counts in it.
        return None if self._finite is None else self._round.counts

    def _count(self, request, staleness):
        request = dataclasses.replace(request, finite=self._finite)
        super()._count(request, staleness)

    def _ask(self, shards):
        responses, accepted = super()._ask(shards)
        responses = [
            dataclasses.replace(a, wait=a.wait + self._round.waited)
            for a in responses
        ]
        self._bytes_sent = [self._round.num_bytes]
        self._bytes_received = [self._round.num_bytes]
        return responses, accepted
