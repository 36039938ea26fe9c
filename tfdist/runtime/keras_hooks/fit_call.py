"""A call of `fit` of this worker, as the chief's decisions see it."""

import threading
import weakref

from absl import logging

from tfdist import adapted_layers
from tfdist import model_optimizers
from tfdist import own_callbacks
from tfdist import private_keras_building
from tfdist import private_keras_calls
from tfdist.cluster import fit_progress
from tfdist.data_shares import data_number


class FitCall:
    """One call of `fit` of this worker.

    Args:
      frame: Its frame.
      number: Its number.
      running: Its `RunningFit`; None if none is known.
    """

    def __init__(self, frame, number, running=None):
        self.frame = frame
        self.number = number
        self._running = running
        self.thread = threading.get_ident()
        self._model = weakref.ref(private_keras_calls.model_of(frame))
        # Variables with learning rates that are followed, and number of all.
        self.rates = []
        self._num_rates = 0
        # Those that the script gives.
        self.first_rates = ()
        # Whether it ends by putting averages of weights in place, or has a
        # callback that waits for the others.
        self.averages = False
        self._has_waiting_callback = any(
            getattr(callback, "ends_together", False)
            for callback in own_callbacks.listed(
                private_keras_calls.callbacks_of(frame)
            )
        )
        self.is_in_loop = False
        # The epoch of the last calls that callbacks have made within it, and
        # their number in that epoch.
        self._calls_within = 0, 0
        # Whether Keras has taken its last step.
        self.has_ended = False
        self.data = data_number.DataNumber()
        # Whether it has come to its first step.
        self.has_begun = False
        # Whether it has begun its first step.
        self.has_stepped = False
        # Whether the chief has stopped it.
        self.stopped = False
        # What the chief had told by an exchange, what of it counts here, and
        # the number of exchanges when it was looked at and adopted.
        self.seen = self.told = fit_progress.Word()
        self.exchanges = self.adopted = None

    @property
    def is_call(self):
        """Whether it counts: it came to its first step, or had none to take.

        One that raises before is none.
        """
        return self.has_begun or (
            self._running is not None and self._running.has_ended
        )

    @property
    def model(self):
        """The `keras.Model`."""
        return self._model()

    @property
    def number_of_order(self):
        """See `ChiefDecisions.number_of_order`."""
        epoch, within = self._calls_within
        place = (epoch + 1) * 2**16 + within if within else 0
        return self.number + place * 2**24

    def note_call_within(self, epoch):
        """Called when a callback makes a call within this one, in an epoch."""
        before, within = self._calls_within
        self._calls_within = epoch, within + 1 if before == epoch else 1

    @property
    def ends_together(self):
        """Whether workers wait for each other when their steps have ended."""
        return self.averages or self._has_waiting_callback

    def find_rates(self):
        """Takes note of the learning rates of all optimizers.

        Of a `MultiOptimizer` they may be known after its first step alone.
        """
        rates = _rates_of(self.model)
        are_new = len(rates) != self._num_rates
        self._num_rates = len(rates)
        self.rates = rates[: fit_progress.MAX_RATES]
        if are_new and len(rates) > len(self.rates):
            logging.warning(
                "The model has %d learning rates. Workers follow those that "
                "the chief sets of the first %d optimizers alone: set the "
                "others on all workers.",
                len(rates),
                len(self.rates),
            )

    def find_averages(self):
        """Takes note of whether the call ends by assigning averages of weights.

        As for `find_rates`, that may be known after its first step alone.
        """
        self.averages = model_optimizers.averages_weights(self.model)

    def own_rates(self):
        """The learning rates here, a tuple of floats."""
        return tuple(float(rate.numpy()) for rate in self.rates)

    def adopt_rates(self, may_last):
        """Sets the learning rates that the chief has told.

        Args:
          may_last: Whether what a callback here sets lasts until an exchange.
        """
        told = self.told
        if told.number != self.number or not told.rates:
            return
        if may_last and self.adopted == self.exchanges:
            return
        self.adopted = self.exchanges
        self._set_rates(told.rates)

    def resume_rates(self, rates):
        """Sets the learning rates that a former process has had in this call.

        Args:
          rates: Floats; none where there were none.
        """
        here = self.first_rates
        # Else of another model, or of optimizers that a step has made.
        if len(rates) == len(here) and tuple(rates) != here:
            logging.info(
                "Goes on with the learning rates that the chief had set: %s. "
                "Those of this script are %s.",
                list(rates),
                list(here),
            )
            self._set_rates(rates)

    def _set_rates(self, rates):
        for variable, rate in zip(self.rates, rates, strict=False):
            if float(variable.numpy()) != rate:
                variable.assign(rate)


def makes_all_when_built(model):
    """Whether the variables of a step are those of a built model and optimizer.

    Further optimizers may make theirs in the first step.
    """
    others = model_optimizers.others_of(model)
    has_new = any(not getattr(other, "built", False) for other in others)
    return private_keras_building.is_built(model) and not has_new


def build_optimizer(model):
    """Makes the variables that the first step of a call would make.

    Where the call is passed, and these are known: those that come later are to
    have the numbers that they have on other workers.
    """
    if makes_all_when_built(model):
        model_optimizers.build(model)
    else:
        model_optimizers.finalize_when_built(model)


def take_over(model, runtime):
    """Takes over what servers hold, for a call that has no step to do so.

    Args:
      model: The `keras.Model`.
      runtime: The `Runtime`.
    """
    if runtime.synchronizer.held() > len(runtime.store.variables):
        build_optimizer(model)
    else:
        # Its steps train with others, as a GAN's: nobody has built it.
        model_optimizers.finalize_when_built(model)
    runtime.commit()
    adapted_layers.take_over(model)
    runtime.unused_models.refuse([v.value for v in model.variables])


def _rates_of(model):
    """Learning rates of a model's optimizers, Keras's variables, a list.

    That of `compile` comes last: a model with others may never use it.
    """
    rules = model_optimizers.update_rules_of(model)
    return model_optimizers.rates_of(
        [*model_optimizers.others_of(model), *rules]
    )
