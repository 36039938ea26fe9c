"""The engine that calls of `fit` ask, for local steps without servers.

`tfdist.all_reduce.fit` ends epochs and calls of `fit` together on all workers,
and asks this for what is different with K local steps between exchanges: a
period goes on over the end of an epoch, and is cut short at the end of `fit`.
"""

import time

from absl import logging

from tfdist import adapted_layers
from tfdist import interrupts
from tfdist import model_optimizers
from tfdist.all_reduce import fit as fit_lib
from tfdist.all_reduce import tail as tail_lib
from tfdist.all_reduce.consistency import DifferentValuesError
from tfdist.all_reduce.consistency import Moment
from tfdist.program_error import ProgramError
from tfdist.runtime.local_steps import ring as ring_lib


class RingEngine:
    """The part of `tfdist.all_reduce.engine.Engine`, of local steps.

    Args:
      ring: The `Ring`.
      values: The `StoreValues`.
      consistency: The `Consistency`.
      journal: The `Journal`.
      is_chief: Whether this worker is the chief.

    Attributes:
      fits: The `FitCalls`.
      is_chief: Whether this worker decides by itself when to stop.
      local: The `Local`; set before anything else is called.
      num_workers: Number of workers.
    """

    # Local steps put back what evaluations assign.
    evaluations_assign = False

    def __init__(self, ring, values, consistency, journal, *, is_chief):
        self._ring = ring
        self._values = values
        self._consistency = consistency
        self._journal = journal
        self.is_chief = is_chief or not ring.follows_chief
        self.num_workers = ring.num_workers
        self.read_told = ring.told.read
        self.local = None
        self.fits = fit_lib.FitCalls(self)
        # Whether all workers have taken a step. Not `Local.has_begun`: each
        # worker forgets optimizers at a moment of its own.
        self._has_begun = False
        # Exchanges of this worker when all had last met.
        self._met_at = 0

    @property
    def has_failed(self):
        """Whether workers can meet no more, for good."""
        return self._ring.has_failed

    def call(self, function, *args):
        """Calls a `train_function`."""
        return function(*args)

    def lanes_of(self, model):
        """Not empty once an optimizer has begun to train; see `follow`."""
        return [self] * self._has_begun

    def is_open(self):
        """Whether this worker has trained since all have met."""
        return self._journal.count != self._met_at or self.local.unpushed()

    # Exchanges.

    @interrupts.deferred()
    def follow(self, lanes=(), **mine):
        """Takes part in an exchange without a batch; see `Engine`.

        With the steps that this worker has left. They wait for the end of
        their period where nobody has a batch and not all is over.

        Raises:
          ValueError: Several optimizers of this worker have steps left.
        """
        if not self._ring.follows_chief:
            mine["chief"] = tail_lib.TRAINS
        local = self.local
        found = [inner for inner in local.inners if inner.has_steps()]
        if len(found) > 1:
            raise several_optimizers()
        left = found[0] if found else None
        takes_part = left is not None
        if takes_part:
            local.look(left)
        began = time.time()
        mine = tail_lib.Tail(gradients=float(takes_part), **mine)
        tail, weight, number = self._ring.call(left, mine)
        seconds = began, time.time() - began
        if tail.gradients and (tail.present or tail.over):
            self._ring.exchange(
                self._inner(number),
                weight,
                takes_part,
                seconds,
                local.build_turn,
            )
        local.show_anchor()
        return tail

    def _inner(self, number):
        for inner in self.local.inners:
            if ring_lib.number_of(inner) == number:
                return inner
        raise ProgramError(
            "Another worker trains a model that this one has deleted, or has "
            "never trained. Without servers all workers have to train the same "
            "model at the same time."
        )

    def end_steps(self):
        """Exchanges what is left, until all workers have come to this end."""
        chief = self.is_chief * tail_lib.IS_OVER
        is_over = False
        while not is_over:
            with self.meeting():
                tail = self.follow(over=1.0, chief=chief)
                is_over = tail.over >= self.num_workers
                if is_over:
                    self.note_met()
                    self.compare_model(Moment.BARRIER, None)
                    self.adopt_model(Moment.BARRIER, None)

    def meet(self):
        """Waits for all workers, in a callback between two batches."""
        with self.meeting():
            self._consistency.meet(Moment.BARRIER)

    def put_averages(self, model, are_there):
        """Does nothing: local steps refuse averages of weights."""

    def note_end(self, lanes):
        """Does nothing: weights stay a worker's own until all have met."""

    def note_met(self, lanes=None):
        """Called when all workers have met after their steps."""
        self._met_at = self._journal.count
        self.local.end_own_values()

    # What all have alike.

    def begin_optimizer(self, optimizer):
        """Called before the first step of an optimizer; all begin alike.

        Args:
          optimizer: The Keras optimizer.

        Raises:
          ModelMismatchError: Another worker's model differs.
          ValueError: Another worker trains in another way.
        """
        method = f"local_steps={self.local.method!r}"
        settings = f"{method}; {model_optimizers.described([optimizer])}"
        self._adopt(Moment.STEP, self._rates([optimizer]), settings)
        self._has_begun = True

    def meeting(self):
        """Scope of what all workers do together; see `Engine`."""
        return interrupts.deferred()

    def adopt_model(self, moment, model, optimizers=(), data=0):
        """Gives all workers the chief's values; see `Engine`."""
        if moment is Moment.FIT and (self.fits.is_running or self.is_open()):
            # Of a loop before, or of the call of `fit` around this one.
            self.end_steps()
        rates = self._rates([getattr(model, "optimizer", None)])
        settings = self.fits.settings(moment, optimizers)
        self.local.show_anchor()
        if not self._has_begun:
            if moment is Moment.FIT:
                # The first step brings all values, and is traced before that.
                self._consistency.adopt_others(
                    moment, adapted_layers.variables_of(model)
                )
            return self._consistency.adopt(moment, rates, settings, data)
        return self.local.take_over(
            lambda: self._adopt(moment, rates, settings, data)
        )

    def _rates(self, optimizers):
        """Their rates that the chief decides, a list of variables."""
        return [
            rate
            for optimizer in optimizers
            for rate in self._ring.rates_of(optimizer)
        ]

    def _adopt(self, moment, rates, settings, data=0):
        values = self._read(moment)
        chiefs = self._consistency.adopt(
            moment, [*values, *rates], settings, data
        )
        self._values.write(values)
        return chiefs

    def _read(self, moment):
        return self._values.read(
            lambda freed: self._consistency.union(moment, freed)
        )

    def end_epoch(self):
        """Does nothing: local steps end with an exchange."""

    def compare_model(self, moment, model):
        """Logs it if workers hold different values."""
        if not self._has_begun:
            # A first step that was refused: the model is on no worker's store.
            return
        try:
            self._consistency.compare(moment, self._read(moment), but="")
        except DifferentValuesError as error:
            logging.warning("%s All take over the chief's.", error)


def several_optimizers():
    """The error of several optimizers that train at a time."""
    return ValueError(
        'With communication="ring" one optimizer trains at a time, and a '
        "second one takes steps, too. Use "
        'communication="parameter_server", or let training end '
        "(`strategy.barrier`) in between."
    )
