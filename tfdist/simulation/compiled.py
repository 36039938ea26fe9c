"""Functions that are traced once for each form of their arguments."""

import tensorflow as tf


class Compiled:
    """A traced function of tensors, nested in lists.

    `tf.function` does the same, and warns of retracing where many short-lived
    objects have one each.

    Args:
      build: What is traced.
    """

    def __init__(self, build):
        self._function = tf.function(build, autograph=False)
        self._traces = {}

    def __call__(self, *arguments):
        """Calls it; all leaves are tensors, `tf.IndexedSlices` or None."""
        leaves = tf.nest.flatten(arguments, expand_composites=True)
        form = tuple(
            None if leaf is None else (tuple(leaf.shape), leaf.dtype)
            for leaf in leaves
        )
        if form not in self._traces:
            self._traces[form] = self._function.get_concrete_function(
                *arguments
            )
        return self._traces[form](*arguments)
