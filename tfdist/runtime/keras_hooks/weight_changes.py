"""The call of `fit` that may have changed a weight, of all calls so far."""

import weakref

from tfdist import model_optimizers


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
        # When the call under way began: see `_numbers_of_assignments`.
        self._before = None

    def begin(self, model, number):
        """Called when the steps of a call of `fit` begin.

        Args:
          model: The `keras.Model`.
          number: The call's number.
        """
        self._before = _numbers_of_assignments(model)
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
            now = _numbers_of_assignments(model)
            ever = {key for key, number in now.items() if number}
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


def _numbers_of_assignments(model):
    """Counts of assignments, by steps that were traced and by eager ones.

    Args:
      model: The `keras.Model`.

    Returns:
      A dict of ids of its weights, and of variables of its optimizers, to int.
    """
    rules = model_optimizers.update_rules_of(model)
    variables = [v for owner in rules for v in owner.variables]
    return {
        id(variable): getattr(variable.value, "num_assignments", 0)
        for variable in [*model.weights, *variables]
    }


def _ids(variables):
    return frozenset(id(variable) for variable in variables)
