"""Local steps exchanged through parameter servers."""

import functools

import tensorflow as tf

from tfdist.runtime.coordination import agreement
from tfdist.runtime.exchange import step as step_lib
from tfdist.runtime.local_steps import communication


class ServerCommunication(communication.Communication):
    """See `Communication`; each worker exchanges by itself, with the servers.

    Args:
      store: The `ParameterStore`.
      coordination: The `Coordination`.
      method: The `LocalSteps`, resolved.
      synchronization: The `Synchronization`, resolved.
    """

    def __init__(self, store, coordination, method, synchronization):
        self._store = store
        self._coordination = coordination
        self._method = method
        self._averages = synchronization.averages

    # First values: the servers have them.

    def begin(self, local, optimizer, clock):
        """See `Communication`: the first worker leaves how it trains."""
        mine = f"local_steps={local.method!r}"
        theirs = agreement.agree(
            self._store, "lock", f"local/{clock.ordinal}", mine
        )
        if mine != theirs:
            raise ValueError(
                f"All workers must train in the same way. Here {mine}, on the "
                f"servers {theirs}."
            )

    def check_eager(self):
        """See `Communication`: they can be."""

    def begin_fit(self, local, call, frame):
        """Does nothing."""

    def call_in_fit(self, local, function, *args):
        """See `Communication`: what is left is exchanged when `fit` ends.

        Others wait for it, and nobody knows when the script will do something
        that asks for it.
        """
        local.fit.before_end(functools.partial(local.flush, last=True))
        return function(*args)

    # An exchange.

    def build_round(self, inner):
        """See `Communication`."""
        return communication.Round(takes_part=True)

    def combine(self, inner, records, sent, this_round, finite):
        """See `Communication`: the servers combine what they are sent."""
        return records, sent

    def exchange(self, inner, this_round, **kwargs):
        """See `Communication`."""
        weight = None
        if self._averages and self._method.weighted:
            weight = tf.cast(inner.examples.read_value(), tf.float64)
        return self._coordination.exchange(weight=weight, **kwargs)

    # Outside of steps.

    def before_pull(self, local):
        """See `Communication`."""
        if local.is_training() and local.unpushed():
            local.show_anchor()
            return False
        self.flush(local, last=True)
        return True

    def flush(self, local, last):
        """See `Communication`."""
        local.show_anchor()
        self._flush(local, local.inners, last)

    def finish(self, local):
        """See `Communication`."""
        self.flush(local, last=True)

    def has_left(self, local):
        """See `Communication`: of this worker."""
        return local.unpushed()

    def is_open(self, local):
        """See `Communication`: the servers know for whom is waited."""
        return False

    def release(self, local, inners):
        """See `Communication`."""
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
