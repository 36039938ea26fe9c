"""Local steps exchanged by workers of a cluster without servers."""

import time

from absl import logging

from tfdist.runtime.all_reduce import ring_exchange
from tfdist.runtime.local_steps import communication


class RingCommunication(communication.Communication):
    """See `Communication`; an exchange needs all workers: none may end alone.

    A worker whose `fit` is over takes part in the exchanges of the others
    until theirs is, too: at the end of `fit` after all callbacks. Where an
    exception has ended it, or a loop of the user's own: in `barrier`, at the
    beginning of the next `fit`, at the latest when the process ends.

    Args:
      ring: The `Ring`.
      journal: The `Journal`.
    """

    def __init__(self, ring, journal):
        self._ring = ring
        self._journal = journal
        # Whether others may wait for this worker.
        self._open = False
        # Whether the last call of `fit` has not ended for all workers.
        self._in_fit = False
        self._exchanged = 0

    # First values.

    def begin(self, local, clock):
        """See `Communication`: all workers wait for each other."""
        if local.has_own_values:
            raise ValueError(
                'With communication="ring" one optimizer trains at a time, '
                "and a second one takes its first step. Use "
                'communication="parameter_server", or let training end '
                "(`strategy.barrier`) in between."
            )
        local.show_anchor()
        self._ring.start.begin(f"local_steps={local.method!r}")
        local.adopt_fresh()
        self._open = True

    def add(self, inner):
        """See `Communication`."""
        self._ring.add(inner)

    def begin_fit(self, local):
        """See `Communication`: all take over what the first one has."""
        self.finish(local)
        self._in_fit = True
        if local.has_begun:
            local.take_over(self._ring.start.spread)
            self._open = True

    # An exchange.

    def build_round(self, inner):
        """See `Communication`; a `RingRound`."""
        return self._ring.build_round(inner)

    def combine(self, inner, records, sent, this_round, finite):
        """See `Communication`: means over all workers."""
        return self._ring.average(inner, records, this_round, finite)

    def exchange(self, inner, this_round, **kwargs):
        """See `Communication`."""
        return ring_exchange.RingExchange(this_round, **kwargs)

    # Outside of steps.

    def before_pull(self, local):
        """See `Communication`."""
        if self.has_left(local) and not local.is_training():
            self.finish(local)
        # Nothing tells when a training loop of the user's own has ended.
        local.show_anchor()
        return not local.unpushed()

    def flush(self, local, last):
        """See `Communication`."""
        if last or not local.is_training():
            self.finish(local)
        elif local.unpushed():
            self._take_turn(local, training=True)
        local.show_anchor()

    def finish(self, local):
        """See `Communication`: until nobody trains any more."""
        if not self.is_open(local):
            return
        while True:
            called = self._take_turn(local, training=False)
            if not called.workers and not called.training:
                break
        self._open = self._in_fit = False
        local.end_own_values()
        self._exchanged = self._journal.count
        local.show_anchor()
        if (difference := self._ring.start.difference()) is not None:
            logging.warning("%s All take over the chief's.", difference)
            local.take_over(self._ring.start.spread)

    def has_left(self, local):
        """See `Communication`: of all workers."""
        return self._open and self._in_fit

    def is_open(self, local):
        """See `Communication`."""
        return (
            self._open
            or self._journal.count != self._exchanged
            or local.unpushed()
        )

    def release(self, local, inners):
        """Lets go of nothing without servers, see `VariableList`."""
        return False

    def _take_turn(self, local, *, training):
        """Takes part in one exchange, with what is left or with nothing.

        Returns:
          What all workers have brought to it, a `Called`.
        """
        mine = [k for k, i in enumerate(self._ring.inners) if i.has_steps()]
        if mine:
            local.look(self._ring.inners[mine[0]])
        began = time.time()
        called = self._ring.call(mine[0] if mine else None, training=training)
        seconds = began, time.time() - began
        if called.workers:
            number = round(called.number / called.workers)
            self._ring.exchange(
                number, called, bool(mine), seconds, local.build_turn
            )
        return called
