"""The values of a store, which all workers of a ring have alike.

Those of a model that one worker has freed are left out on all: Python collects
models on each worker at a moment of its own, and without that worker no other
can train the model.
"""

import tensorflow as tf

from tfdist.runtime.exchange.pull_response import assign
from tfdist.runtime.variables import traced_calls
from tfdist.runtime.variables.variables import Role


class StoreValues:
    """All values of one store, read and written together.

    Args:
      store: The `ParameterStore`.
      commit: Callable that gives new variables their first values.
    """

    def __init__(self, store, commit):
        self._store = store
        self._commit = commit
        self._traced = traced_calls.Traced(store)
        # Positions of variables that some worker has freed.
        self._left_out = set()

    def read(self, agree):
        """Returns what this worker holds, a list of `Value`.

        Args:
          agree: Callable of the positions of variables that this worker has
            freed and not told of yet, a list of ints. It returns those of all
            workers, a set.
        """
        # A callback may have made a model, which has no values yet.
        self._commit()
        made = range(len(self._store.variables))
        # From here on none of these can go.
        variables = dict(self._store.variables.items())
        freed = [
            k for k in made if k not in variables and k not in self._left_out
        ]
        self._left_out |= agree(freed)
        variables = [v for k, v in variables.items() if k not in self._left_out]
        held = self._traced.call(
            _key("read", variables), lambda: self._build_read(variables)
        )
        return [
            Value(*pair) for pair in zip([None, *variables], held, strict=True)
        ]

    def write(self, values):
        """Makes this worker hold such a list of `Value`."""
        _, *variables = [value.variable for value in values]
        self._traced.call(
            _key("write", variables),
            lambda *tensors: self._build_write(variables, *tensors),
            *(value.tensor for value in values),
        )

    def _build_read(self, variables):
        store = self._store
        return [
            store.counter("version", 0).read_or_zero(),
            *(
                tf.raw_ops.ReadVariableOp(
                    resource=store.handle(v, v.shard), dtype=v.dtype
                )
                for v in variables
            ),
        ]

    def _build_write(self, variables, version, *values):
        store = self._store
        store.counter("version", 0).set(version)
        store.set_pulled_version(0, version)
        for variable, value in zip(variables, values, strict=True):
            assign(store.handle(variable, variable.shard), value)
            assign(variable.local_handle, value)
            if variable.role is Role.ITERATIONS:
                assign(variable.pulled.local_handle, value)


def _key(what, variables):
    return what, tuple(v.ordinal for v in variables)


class Value:
    """One value of a store, which `Consistency` treats as a variable.

    Args:
      variable: The variable; None for the number of updates.
      tensor: An eager tensor.
    """

    def __init__(self, variable, tensor):
        self.variable = variable
        self.name = "version" if variable is None else variable.name
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
