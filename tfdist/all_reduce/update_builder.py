"""The building of an optimizer's step over many variables."""

import collections
import os

import tensorflow as tf

from tfdist import fused_kernels


class UpdateBuilder:
    """One step of an optimizer that is being built.

    A scalar of the optimizer is read once. Keras reads the number of the step
    for each variable anew, and computes what follows from it; of one reading
    TensorFlow sees that it is the same for all.

    Variables are updated one after the other, as many at a time as there are
    processors. All gradients are there at once, and TensorFlow would do the
    first operation for each variable, then the second for each: what one has
    made would have left the processor's cache when the next needs it.
    """

    def __init__(self):
        self._at_once = os.cpu_count() or 1
        # By graph: an optimizer's step may have branches.
        self._updated = collections.defaultdict(list)
        # By `id` of a variable, and graph.
        self._values = collections.defaultdict(dict)

    def read(self, variable, read):
        """Returns the value of a variable, from a call of `read` or before."""
        values = self._values[id(variable)]
        graph = tf.compat.v1.get_default_graph()
        if graph not in values:
            values[graph] = read()
        return values[graph]

    def before_assignment(self, variable):
        """Called before a variable is assigned."""
        self._values.pop(id(variable), None)

    def call(self, variable, fn, args, kwargs):
        """Does what Keras gives to `strategy.extended.update`."""
        updated = self._updated[tf.compat.v1.get_default_graph()]
        if len(updated) >= self._at_once and args:
            with tf.control_dependencies([updated[-self._at_once]]):
                args = (tf.identity(args[0]), *args[1:])
        result = fused_kernels.update(variable, fn, args, kwargs)
        updated.append(variable.read_value())
        return result
