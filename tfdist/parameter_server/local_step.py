"""A training step whose optimizers act on this worker's own weights.

Everything that Keras does in a step it does to the replicas, as on one
machine. Where an optimizer counts its step, an exchange follows if it is due.
"""

import tensorflow as tf

from tfdist.parameter_server import step as step_lib
from tfdist.parameter_server.variables import Role


class LocalStep:
    """Follows one call of `strategy.run` while it is traced.

    Args:
      store: The `ParameterStore`.
      arguments: What the step was called with; the first axis of its first
        tensor tells how many examples it has.
    """

    is_local = True
    # Of how many optimizers a step may have been dropped.
    num_optimizers = 0

    def __init__(self, store, arguments):
        self._store = store
        self._local = store.local
        self._root = tf.compat.v1.get_default_graph()
        self._first = len(self._root.get_operations())
        self._examples = _num_examples(arguments)
        # Since the last exchange in this trace, by ordinal.
        self._touched = {}
        self._states = {}
        self._points = {}
        self._gradients = {}
        self._expected = 0
        self._optimizer = None
        self._trains = False

    def reduced(self, tensors):
        """Takes note of gradients that an optimizer is about to apply.

        Args:
          tensors: List of tensors, as handed to the optimizer.
        """
        self._expected = len(tensors)

    def update(self, variable, fn, args, kwargs):
        """Does `fn(variable, *args, **kwargs)` here."""
        optimizer = step_lib.optimizer_of(fn)
        if optimizer is not None and variable.role is Role.PARAMETER:
            self._optimizer = optimizer
            self._touched[variable.ordinal] = variable
            if self._local.needs_points:
                self._note_point(variable)
        if self._expected and args:
            self._expected -= 1
            if self._local.needs_gradients:
                self._gradients[variable.ordinal] = args[0]
        fn(variable, *args, **kwargs)

    def _note_point(self, variable):
        """Keeps the weights at which the step's gradients are computed."""
        if variable.ordinal not in self._points:
            self._points[variable.ordinal] = variable.read_value()

    def assigned(self, variable):
        """Called after a variable was assigned in the user's code."""
        if variable.role is Role.STATE:
            self._states[variable.ordinal] = variable
        if variable.role is Role.CLOCK and self._touched:
            self._end(variable)

    def _end(self, clock):
        """An optimizer has counted its step."""
        self._trains = True
        self._local.after_step(
            clock,
            self._optimizer,
            list(self._touched.values()),
            states=list(self._states.values()),
            points=self._points,
            gradients=self._gradients,
            examples=self._examples,
        )
        self._touched, self._states = {}, {}
        self._points, self._gradients = {}, {}
        self._optimizer = None

    def finish(self):
        """Called when the user's step function has ended.

        What the model's variables hold depends on what the step is for.
        """
        self._local.before_step(self._root, self._first, own=self._trains)


def _num_examples(arguments):
    for tensor in tf.nest.flatten(arguments, expand_composites=True):
        if isinstance(tensor, tf.Tensor) and tensor.shape.rank:
            return tf.shape(tensor, out_type=tf.int64)[0]
    return tf.ones([], tf.int64)
