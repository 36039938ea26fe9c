"""Graphs that one store calls outside steps, traced when first called."""

import tensorflow as tf


class Traced:
    """What has been traced, by key.

    Args:
      store: The `ParameterStore`, which calls them.
    """

    def __init__(self, store):
        self._store = store
        self._functions = {}
        store.traced.add(self)

    def call(self, key, build):
        """Calls what `build` builds.

        Args:
          key: Hashable that stands for it.
          build: Callable without arguments; called once for a key.

        Returns:
          What it returns, as eager tensors.
        """
        function = self._functions.get(key)
        if function is None:
            function = tf.function(build, autograph=False)
            function = self._functions[key] = function.get_concrete_function()
        return self._store.call(function)

    def forget(self):
        """Forgets all; what is called again is traced again."""
        self._functions.clear()
