"""Local steps exchanged by workers of a cluster without servers."""

from absl import logging

from tfdist.runtime.local_steps import ring as ring_lib
from tfdist.runtime.local_steps import ring_engine


class RingCommunication:
    """See `ServerCommunication`, which has the same methods.

    An exchange needs all workers: none may end alone. A worker whose epoch or
    `fit` is over takes part in the exchanges of the others until theirs is,
    too. Where an exception has ended it, or a loop of the user's own: in
    `barrier`, at the beginning of the next `fit`, at the latest when the
    process ends.

    Args:
      ring: The `Ring`.
      engine: The `RingEngine`.
    """

    def __init__(self, ring, engine):
        self._ring = ring
        self._engine = engine

    # First values.

    def before_variable(self):
        """A new model is none of a `fit` that an exception has ended."""
        self._engine.fits.end_if_abandoned()

    def meeting(self):
        """All go on with the same optimizer, or none does."""
        return self._engine.meeting()

    def begin(self, local, optimizer, clock):
        """Waits until all workers begin."""
        self._engine.local = local
        if local.has_own_values or self._engine.is_open():
            raise ring_engine.several_optimizers()
        local.show_anchor()
        self._engine.begin_optimizer(optimizer)
        local.adopt_fresh()

    def check_eager(self):
        """Refuses eager steps: all would begin after the first step."""
        raise ValueError(
            'With communication="ring" and local steps no step may run '
            "eagerly: leave out run_eagerly=True, and call strategy.run in a "
            'tf.function, or use communication="parameter_server".'
        )

    def begin_fit(self, local, call, frame):
        """All begin with what the chief has."""
        self._engine.local = local
        self._engine.fits.watch(frame, call)

    def note_data(self, checksum, is_seed):
        """All are told whether the chief's is another one."""
        self._engine.fits.note_data(checksum, is_seed)

    def call_in_fit(self, local, function, *args):
        """All end their epochs together."""
        return self._engine.fits.call(function, *args)

    # An exchange.

    def build_round(self, inner):
        """Returns a `RingRound`."""
        return self._ring.build_round(inner)

    def combine(self, inner, records, sent, this_round, finite):
        """Builds means over all workers."""
        return self._ring.average(inner, records, this_round, finite)

    def exchange(self, inner, this_round, **kwargs):
        return ring_lib.RingExchange(this_round, **kwargs)

    # Outside of steps.

    def before_pull(self, local):
        if self.has_left(local):
            self.finish(local)
        # Nothing tells when a training loop of the user's own has ended.
        local.show_anchor()
        return not local.unpushed()

    def flush(self, local, last):
        if last or not self._engine.fits.is_running:
            self.finish(local)
        elif local.unpushed():
            self._engine.follow(present=1.0)
        local.show_anchor()

    def finish(self, local, meets=False):
        """Takes part until nobody trains any more.

        Args:
          local: The `Local`.
          meets: Whether all workers come to this, also in a callback.
        """
        engine = self._engine
        engine.local = local
        engine.fits.end_abandoned()
        if engine.has_failed and not meets:
            if engine.is_open():
                logging.log_first_n(
                    logging.WARNING,
                    "Another worker is gone: steps since the last exchange "
                    "are exchanged no more, and the model is that of then.",
                    1,
                )
            local.show_anchor()
            return
        has_ended = engine.fits.is_ending and not local.unpushed()
        if has_ended and not meets:
            # All have just exchanged what was left, and meet after their
            # callbacks: whom an exception has ended does not come here.
            return
        if engine.fits.is_running:
            if meets:
                engine.meet()
        elif meets or engine.is_open():
            engine.end_steps()
            local.show_anchor()

    def has_left(self, local):
        """Whether an exception has ended a call of `fit`."""
        return self._engine.fits.has_abandoned

    def is_open(self, local):
        self._engine.local = local
        return self._engine.fits.is_running or self._engine.is_open()

    def release(self, local, inners):
        """Whether all have met since their last steps."""
        return not self.is_open(local)
