"""All workers of a ring begin to train with the same model and values."""

import numpy as np
import tensorflow as tf

from tfdist.all_reduce import collectives as collectives_lib
from tfdist.all_reduce import consistency as consistency_lib
from tfdist.runtime.exchange.pull_response import assign
from tfdist.runtime.variables import traced_calls
from tfdist.runtime.variables.variables import Role


class CommonStart:
    """The beginning of training of one strategy.

    Args:
      collectives: The `Collectives`.
      bounded: The same, with the bound of a start.
      store: The `ParameterStore`.
      worker_names: Names of the workers, a tuple of strings.
    """

    def __init__(self, collectives, bounded, store, worker_names):
        self._bounded = bounded
        self._store = store
        self._names = worker_names
        self._consistency = consistency_lib.Consistency(
            collectives, worker_names
        )
        self._traced = traced_calls.Traced(store)

    def begin(self, text):
        """Waits for all workers; they must train in the same way.

        Args:
          text: How this one does.

        Raises:
          ModelMismatchError: Another worker's model differs.
          TimeoutError: A worker has not come within the bound.
          ValueError: Another worker trains in another way.
        """
        moment = consistency_lib.Moment.STEP
        try:
            rows = consistency_lib.Consistency(self._bounded, self._names).meet(
                moment, collectives_lib.key_of(text)
            )
        except tf.errors.DeadlineExceededError as error:
            raise TimeoutError(
                f"Gave up after {self._bounded.seconds:g} s waiting for "
                "all workers to begin to train."
            ) from error
        for worker in np.flatnonzero(rows[:, 0] != rows[0, 0]):
            raise ValueError(
                f"All workers must train in the same way. {self._names[worker]}"
                f" trains in another way than {self._names[0]}. Here: {text}."
            )
        self._adopt(moment)

    def spread(self):
        """Gives all workers the chief's values before or after a `fit`."""
        self._adopt(consistency_lib.Moment.FIT)

    def difference(self):
        """Compares the values of all workers when they have ended a `fit`.

        Returns:
          A message that names worker and variables; None if all are equal.
        """
        moment = consistency_lib.Moment.END_OF_FIT
        try:
            self._consistency.compare(moment, self._read(), but="")
        except consistency_lib.DifferentValuesError as error:
            return str(error)
        return None

    def _adopt(self, moment):
        values = self._read()
        self._consistency.adopt(moment, values)
        self._traced.call(
            f"write/{len(values)}",
            self._build_write,
            *(value.tensor for value in values),
        )

    def _read(self):
        """Returns what this worker holds, a list of `_Value`."""
        names = ["version", *(v.name for v in self._store.variables)]
        held = self._traced.call(f"read/{len(names)}", self._build_read)
        return [_Value(*pair) for pair in zip(names, held, strict=True)]

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


class _Value:
    """A value of a store, which `Consistency` treats as a variable."""

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
