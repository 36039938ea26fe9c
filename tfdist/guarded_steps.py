"""Steps of Keras that go through a function of ours."""

import functools
import itertools
import types

from tfdist import dynamic_subclasses


class GuardedFunction:
    """A step of a model, called in our way.

    Args:
      function: The `train_function`, `test_function` or `predict_function`
        that Keras has made.
      call: Callable of a function and its arguments that calls it.
    """

    def __init__(self, function, call):
        self.function = function
        self._call = call

    def __call__(self, *args):
        if not is_of_batch(args):
            return self._call(self.function, *args)
        # A call that is made again has its batch again.
        taken = []
        rest = _noted(args[0], taken)

        @functools.wraps(self.function)
        def function(batches):
            return self.function(itertools.chain(tuple(taken), batches))

        return self._call(function, rest)


def is_of_batch(args):
    """Whether a step with these arguments is one of `train_on_batch`.

    Or of `test_on_batch`: Keras calls it with a generator of the batch.
    """
    return bool(args) and isinstance(args[0], types.GeneratorType)


def _noted(batches, taken):
    """Yields batches; adds each to the list `taken`."""
    for batch in batches:
        taken.append(batch)
        yield batch


class GuardedTraining:
    """A mixin: a model all of whose training steps are guarded.

    A callback may have Keras make the training step again within `fit`.
    """

    def make_train_function(self, *args, **kwargs):
        """As Keras's; guards the training step that it has made."""
        super().make_train_function(*args, **kwargs)
        _put(self, "train_function", self._tfdist_call)
        return self.train_function


class GuardedLooks:
    """A mixin: a model whose steps of evaluation and prediction are guarded."""

    def make_test_function(self, *args, **kwargs):
        """As Keras's; guards the step of evaluation that it has made."""
        super().make_test_function(*args, **kwargs)
        _put(self, "test_function", self._tfdist_evaluate)
        return self.test_function

    def make_predict_function(self, *args, **kwargs):
        """As Keras's; guards the step of prediction that it has made."""
        super().make_predict_function(*args, **kwargs)
        _put(self, "predict_function", self._tfdist_predict)
        return self.predict_function


def guard(model, call):
    """Makes the training steps of `fit` go through `call`.

    Args:
      model: The `keras.Model` whose `fit` is about to begin.
      call: Callable of a function and its arguments that calls it, in place
        of the one of an earlier `fit`.
    """
    dynamic_subclasses.specialize(model, GuardedTraining)
    # Not by Keras's `__setattr__`: its `__init__` may still be under way.
    vars(model)["_tfdist_call"] = call
    _put(model, "train_function", call)


def guard_looks(model, evaluate, predict):
    """Makes the steps of `evaluate` and `predict` go through functions.

    Args:
      model: The `keras.Model`.
      evaluate: Callable of a function and its arguments that calls it. What
        it calls takes its batches from an iterator.
      predict: The same; what it calls gets its batches.
    """
    dynamic_subclasses.specialize(model, GuardedLooks)
    vars(model).update(_tfdist_evaluate=evaluate, _tfdist_predict=predict)


def _put(model, name, call):
    function = getattr(model, name)
    if isinstance(function, GuardedFunction):
        function = function.function
    if function is not None:  # Or else Keras makes it when it needs it.
        setattr(model, name, GuardedFunction(function, call))
