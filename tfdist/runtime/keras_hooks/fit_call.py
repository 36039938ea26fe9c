"""A call of `fit` of this worker, as the chief's decisions see it."""

import threading
import weakref

from absl import logging

from tfdist import model_optimizers
from tfdist import private_keras
from tfdist import private_keras_calls
from tfdist.cluster import fit_progress


class FitCall:
    """One call of `fit` of this worker.

    Args:
      frame: Its frame.
      number: Its number.
    """

    def __init__(self, frame, number):
        self.frame = frame
        self.number = number
        self.thread = threading.get_ident()
        self._model = weakref.ref(private_keras_calls.model_of(frame))
        # Variables with learning rates that are followed.
        self.rates = []
        self.is_in_loop = False
        # The epoch of the last calls that callbacks have made within it, and
        # their number in that epoch.
        self.calls_within = 0, 0
        # Whether Keras has taken its last step.
        self.has_ended = False
        # A number of the first batch of all; 0 where it is not compared.
        self.data = 0
        # Whether it has come to its first step.
        self.has_begun = False
        # Whether it has made its first step.
        self.has_stepped = False
        # Whether the chief has stopped it.
        self.stopped = False
        # What the chief had told by an exchange, what of it counts here, and
        # the number of exchanges when it was looked at and adopted.
        self.seen = self.told = fit_progress.Word()
        self.exchanges = self.adopted = None

    @property
    def model(self):
        """The `keras.Model`."""
        return self._model()

    def warns_of_data(self, told):
        """Warns of data that is not what the chief shares out.

        Args:
          told: The chief's `Word`.

        Returns:
          Whether it has.
        """
        if not (self.data and told.data) or self.data == told.data:
            return False
        logging.warning(
            "The first batch of the PyDataset is another one here than on the "
            "chief. Each worker trains on every Nth batch: if they come in "
            "another order here, some are trained on twice and others not at "
            "all. Draw the order from the number of the epoch, so that looking "
            "at the data (`evaluate`, `adapt`) does not change it. If the "
            "same examples are only augmented in another way, all is well."
        )
        return True

    def find_rates(self):
        """Takes note of the learning rates, when all optimizers are there."""
        rates = _rates_of(self.model)
        self.rates = rates[: fit_progress.MAX_RATES]
        if len(rates) > len(self.rates):
            logging.warning(
                "The model has %d learning rates. Workers follow those that "
                "the chief sets of the first %d optimizers alone: set the "
                "others on all workers.",
                len(rates),
                len(self.rates),
            )

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
        for variable, rate in zip(self.rates, told.rates, strict=False):
            if float(variable.numpy()) != rate:
                variable.assign(rate)


class WeightChanges:
    """The last call of `fit` here that may have changed each weight.

    A call changes what it trains, and what its steps assign, such as moving
    statistics and teachers. That is known of a model from when a step of it is
    traced, while it trains the same.
    """

    def __init__(self):
        # By id of the variable: a reference to it, the number of the call, a
        # reference to its model, and the ids of the variables that it trains.
        self._calls = {}
        # By model, and ids of what it trains: ids of the weights that its
        # steps assign.
        self._assigned = weakref.WeakKeyDictionary()
        # When the call under way began: see `_steps_that_assign`.
        self._before = None

    def begin(self, model, number):
        """Called when the steps of a call of `fit` begin.

        Args:
          model: The `keras.Model`.
          number: The call's number.
        """
        self._before = _steps_that_assign(model)
        self._note(model, number, set())

    def end(self, model, number):
        """Called when they have ended, or have been passed.

        Where nothing is known of its steps, they may have assigned what any
        has assigned so far, or all.

        Args:
          model: The `keras.Model`; None if it is gone.
          number: The call's number.
        """
        before, self._before = self._before, None
        if model is None:
            return
        weights = otherwise = _ids(model.weights)
        known = self._assigned.setdefault(model, {})
        if before is not None:
            now = _steps_that_assign(model)
            ever = {key for key, steps in now.items() if steps}
            otherwise = ever & weights if ever else weights
            traced = {key for key in ever if now[key] > before.get(key, 0)}
            if traced:
                trained = _ids(model.trainable_variables)
                former = known.get(trained, frozenset())
                known[trained] = former | traced & weights
        self._note(model, number, otherwise)

    def _note(self, model, number, otherwise):
        """Notes a call.

        Args:
          model: The `keras.Model`.
          number: The call's number.
          otherwise: Ids of the weights to note if it is not known what its
            steps assign.
        """
        trained = _ids(model.trainable_variables)
        assigned = self._assigned.get(model, {}).get(trained, otherwise)
        for variable in model.weights:
            if id(variable) in trained or id(variable) in assigned:
                self._calls[id(variable)] = (
                    weakref.ref(variable),
                    number,
                    weakref.ref(model),
                    trained,
                )
        self._calls = {
            key: call
            for key, call in self._calls.items()
            if call[0]() is not None
        }

    def last_of_kept(self, model):
        """The last call that changed what a new one only reads; 0 for none.

        Exchanges bring the values of what the step changes, and no others. The
        same model with the same layers frozen changes the same.

        Args:
          model: The `keras.Model` of the new call.
        """
        trained, last = _ids(model.trainable_variables), 0
        changes = trained | self._assigned.get(model, {}).get(trained, set())
        for variable in model.weights:
            call = self._calls.get(id(variable))
            if call is None or id(variable) in changes:
                continue
            reference, number, former, trained_then = call
            is_same = former() is model and trained_then == trained
            if reference() is variable and not is_same:
                last = max(last, number)
        return last


def _steps_that_assign(model):
    """Number of steps that were traced, and eager ones, that assign each.

    Args:
      model: The `keras.Model`.

    Returns:
      A dict of ids of its weights, and of variables of its optimizers, to int.
    """
    rules = model_optimizers.update_rules_of(model)
    variables = [v for owner in rules for v in owner.variables]
    return {
        id(variable): getattr(variable.value, "num_assigning_steps", 0)
        for variable in [*model.weights, *variables]
    }


def averages_weights(model):
    """Whether `fit` ends by putting averages of a model's weights in place."""
    return any(
        getattr(optimizer, "use_ema", False)
        for optimizer in model_optimizers.update_rules_of(model)
    )


def makes_all_when_built(model):
    """Whether the variables of a step are those of a built model and optimizer.

    Further optimizers may make theirs in the first step.
    """
    return private_keras.is_built(model) and not model_optimizers.others_of(
        model
    )


def build_optimizer(model):
    """Makes the variables that the first step of a call would make.

    Where the call is passed, and these are known: those that come later are to
    have the numbers that they have on other workers.
    """
    if makes_all_when_built(model):
        model_optimizers.build(model)


def _ids(variables):
    return frozenset(id(variable) for variable in variables)


def _rates_of(model):
    """Learning rates of a model's optimizers, Keras's variables, a list.

    That of `compile` comes last: a model with others may never use it.
    """
    rules = model_optimizers.update_rules_of(model)
    found = {}
    for optimizer in [*model_optimizers.others_of(model), *rules]:
        for variable in optimizer.variables:
            if variable.name == "learning_rate":
                found[id(variable)] = variable
    return list(found.values())
