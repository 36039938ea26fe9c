"""Training steps of Keras's `fit` that go through a function of ours."""

import weakref


class GuardedFunction:
    """A model's `train_function`, called in our way.

    Args:
      model: The `keras.Model`.
      function: Its `train_function`; None if it has to be made.
      call: Callable of a function and its arguments that calls it.
    """

    def __init__(self, model, function, call):
        self._model = weakref.ref(model)
        self._function = function
        self._call = call

    def __call__(self, *args):
        if self._function is None:
            # Only now: Keras makes it when it has built the model.
            model = self._model()
            model.make_train_function(force=True)
            self._function = model.train_function
            model.train_function = self
        return self._call(self._function, *args)


def guard(model, call):
    """Makes the training steps of `fit` go through `call`.

    Args:
      model: The `keras.Model` whose `fit` is about to begin.
      call: Callable of a function and its arguments that calls it.
    """
    if not isinstance(model.train_function, GuardedFunction):
        model.train_function = GuardedFunction(
            model, model.train_function, call
        )
