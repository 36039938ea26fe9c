"""All workers of a ring begin to train with the same model and values."""

import numpy as np
import tensorflow as tf

from tfdist.runtime.all_reduce import vector_sums
from tfdist.runtime.exchange.pull_response import assign
from tfdist.runtime.replicas import first_values
from tfdist.runtime.variables import traced_calls
from tfdist.runtime.variables.variables import Role


class CommonStart:
    """The beginning of training of one strategy.

    Args:
      peers: The `Peers`.
      store: The `ParameterStore`.
      sums: The `VectorSums`.
      timeout: Seconds to wait for workers that have not begun to train.
    """

    def __init__(self, peers, store, sums, *, timeout):
        self._peers = peers
        self._store = store
        self._sums = sums
        self._timeout = timeout
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
        signatures = [first_values.signature(v) for v in self._store.variables]
        mine = [len(signatures), vector_sums.checksum(text)]
        if (differing := self._differing("begin", mine)).size:
            if differing[0]:
                raise ValueError(
                    "All workers must train in the same way. Another one has "
                    f"not {text}."
                )
            raise first_values.ModelMismatchError(
                "Another worker's model has more or fewer variables than this "
                f"one's {len(signatures)}. All workers have to build the same "
                "model and optimizer in the same order."
            )
        # Names may differ: Keras numbers layers by what a process has made.
        sums = [vector_sums.checksum(s.split(" ", 1)[1]) for s in signatures]
        differing = self._differing(f"variables/{len(sums)}", sums)
        if differing.size:
            raise first_values.ModelMismatchError(
                "Another worker's model differs from this one's. First "
                f"difference, variable {differing[0]}: here "
                f"{signatures[differing[0]]}. All workers have to build the "
                "same model and optimizer in the same order."
            )
        self.spread()

    def _differing(self, name, numbers):
        """Positions at which workers have other numbers, an int64 array."""

        def build(numbers):
            vector = tf.concat([numbers, -numbers], 0)
            return self._sums.all_reduce(
                vector, name, merge="Max", timeout_seconds=self._timeout
            )

        try:
            most = self._traced.call(
                name, build, tf.constant(numbers, tf.int64)
            )
        except tf.errors.DeadlineExceededError as error:
            raise TimeoutError(
                f"Gave up after {self._timeout:g} s waiting for all workers "
                "to begin to train."
            ) from error
        most, least = np.split(most.numpy(), 2)
        return np.flatnonzero(most != -least)

    def spread(self, exchanges=0):
        """Gives all workers the values of who has made most exchanges.

        Args:
          exchanges: int, of those that this worker has made. Of several that
            have made most the first is taken: by default, the chief.
        """
        rank = (exchanges + 1) * self._peers.num_workers - self._peers.worker_id
        number = len(self._store.variables)
        self._traced.call(
            f"spread/{number}", self._build_spread, tf.constant(rank, tf.int64)
        )

    def _build_spread(self, rank):
        store, variables = self._store, self._store.variables
        name = f"spread/{len(variables)}"
        highest = self._sums.all_reduce(rank[None], f"{name}/rank", merge="Max")
        version = store.counter("version", 0)
        values = [
            version.read_or_zero(),
            *(
                tf.raw_ops.ReadVariableOp(
                    resource=store.handle(v, v.shard), dtype=v.dtype
                )
                for v in variables
            ),
        ]
        values = [
            tf.where(highest[0] == rank, value, tf.zeros_like(value))
            for value in values
        ]
        (number, *values), _ = self._sums.of(values, name)
        version.set(number)
        store.set_pulled_version(0, number)
        for variable, value in zip(variables, values, strict=True):
            assign(store.handle(variable, variable.shard), value)
            assign(variable.local_handle, value)
            if variable.role is Role.ITERATIONS:
                assign(variable.pulled.local_handle, value)
