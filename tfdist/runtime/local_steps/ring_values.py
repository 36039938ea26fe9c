"""The values of a store, which all workers of a ring have alike."""

import tensorflow as tf

from tfdist.runtime.exchange.pull_response import assign
from tfdist.runtime.variables import traced_calls
from tfdist.runtime.variables.variables import Role


class StoreValues:
    """All values of one store, read and written together.

    Args:
      store: The `ParameterStore`.
    """

    def __init__(self, store):
        self._store = store
        self._traced = traced_calls.Traced(store)

    def read(self):
        """Returns what this worker holds, a list of `Value`."""
        names = ["version", *(v.name for v in self._store.variables)]
        held = self._traced.call(f"read/{len(names)}", self._build_read)
        return [Value(*pair) for pair in zip(names, held, strict=True)]

    def write(self, values):
        """Makes this worker hold such a list of `Value`."""
        self._traced.call(
            f"write/{len(values)}",
            self._build_write,
            *(value.tensor for value in values),
        )

    def _build_read(self):
        store = self._store
        return [
            store.counter("version", 0).read_or_zero(),
            *(
                tf.raw_ops.ReadVariableOp(
                    resource=store.handle(v, v.shard), dtype=v.dtype
                )
                for v in store.variables
            ),
        ]

    def _build_write(self, version, *values):
        store = self._store
        store.counter("version", 0).set(version)
        store.set_pulled_version(0, version)
        for variable, value in zip(store.variables, values, strict=True):
            assign(store.handle(variable, variable.shard), value)
            assign(variable.local_handle, value)
            if variable.role is Role.ITERATIONS:
                assign(variable.pulled.local_handle, value)


class Value:
    """One value of a store, which `Consistency` treats as a variable.

    Args:
      name: A string.
      tensor: An eager tensor.
    """

    def __init__(self, name, tensor):
        self.name = name
        self.tensor = tensor
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self.is_agreed = False

    def numpy(self):
        """Returns the value as an array."""
        return self.tensor.numpy()

    def assign(self, tensor):
        """Replaces the value."""
        self.tensor = tensor
