"""Graphs that one store calls outside steps, traced when first called."""

import tensorflow as tf

from tfdist import private_tensorflow


def trace(build, *tensors):
    """The function that `build` builds of such tensors.

    It is called rarely, as it was built: optimizing its graph would cost more
    than it saves. TensorFlow warns of functions that are made again and again,
    by what builds them, unless they are traced before they are called.
    """
    function = tf.function(build, autograph=False)
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in tensors]
    with private_tensorflow.outside_of_functions():
        concrete = function.get_concrete_function(*specs)

    def call(*tensors):
        with private_tensorflow.unoptimized():
            return concrete(*tensors)

    # Not all of `functools.wraps`: `build` holds variables, which would live
    # as long as this.
    call.__qualname__ = concrete.name.decode()
    return call


class Traced:
    """Cache of traced functions, by key.

    Args:
      store: The `ParameterStore`, which calls them.
    """

    def __init__(self, store):
        self._store = store
        self._functions = {}
        store.traced.add(self)

    def call(self, key, build, *tensors):
        """Calls what `build` builds.

        Args:
          key: Hashable that stands for it.
          build: Callable of tensors like `tensors`; called once for a key.
          *tensors: Eager tensors to call it with.

        Returns:
          What it returns, as eager tensors.
        """
        function = self._functions.get(key)
        if function is None:
            function = self._functions[key] = trace(build, *tensors)
        return self._store.call(function, *tensors)

    def forget(self):
        """Forgets all; what is called again is traced again."""
        self._functions.clear()
