"""The graph by which a worker refreshes its replicas, outside steps."""

import tensorflow as tf

from tfdist.runtime.replicas import consistent_read
from tfdist.runtime.variables import copies
from tfdist.runtime.variables import resources
from tfdist.runtime.variables import transfer
from tfdist.runtime.variables.variables import Role


class Refresh:
    """Builds it for one store.

    Args:
      store: The `ParameterStore`.
      marks: Its `ExchangeMarkers`.
      corrector: The `Corrector`.
      gradient_counts: The `GradientCounts`.
      coordination: The `Coordination`.
    """

    def __init__(self, store, marks, corrector, gradient_counts, coordination):
        self._store = store
        self._marks = marks
        self._corrector = corrector
        self._gradient_counts = gradient_counts
        self._coordination = coordination

    @property
    def ledgers(self):
        """Those of all methods, a list; empty without any."""
        return self._coordination.ledgers

    def build(self, variables, together=False):
        """Builds the refreshing of the replicas of `variables`.

        Args:
          variables: List of `ReplicaVariable`.
          together: Whether all servers are read at one moment.

        Returns:
          Together, the marks that were there, see `Marks.build_all`.
        """
        store = self._store
        locks, held, marks = [None] * store.num_shards, None, []
        if together:
            locks, held = consistent_read.lock_all(store)
            marks = self._marks.build_all(held)
        found = []
        for shard in range(store.num_shards):
            here = copies.primary_on(store, shard, variables)
            is_fresh = any(v.role is Role.PARAMETER for v, _ in here) or (
                self._has_tables_alone(shard, variables)
            )
            if here or together or is_fresh:
                read = self._read_under_lock(
                    shard, here, locks[shard], held, marks[shard : shard + 1]
                )
                found.append((shard, here, is_fresh, *read))
        # As a whole or not at all, see `pull_response.all_here`.
        arrived = [
            tensor.op
            for *_, values, totals, counts, updates in found
            for tensor in (*values, *totals, *counts, *updates)
        ]
        all_here = resources.one_after(arrived, store.worker_device)
        with tf.control_dependencies([all_here]):
            self._put_all(found)
        with tf.device(store.worker_device):
            return [tf.identity(mark) for mark in marks]

    def _has_tables_alone(self, shard, variables):
        """Whether a server has no weights but rows, which are always fresh.

        Args:
          shard: Number of the server.
          variables: Those that are refreshed. An optimizer's new slots are not
            what gradients were computed from.
        """
        tables = [v for v in variables if v.role is Role.TABLE]
        if all(table.is_slot for table in tables):
            return False
        every = copies.primary_on(self._store, shard, self._store.variables)
        return not any(v.role is Role.PARAMETER for v, _ in every)

    def _put_all(self, found):
        """Puts what has been read into the replicas.

        Args:
          found: List of number of a server, pairs of variable and piece,
            whether all that gradients are computed from there is fresh, and
            what `_read_under_lock` has returned for them.
        """
        store, pieces = self._store, {}
        for ledger in self.ledgers:
            ledger.forget_row_counts()
        for shard, here, is_fresh, values, totals, counts, updates in found:
            for (variable, piece), value in zip(here, values, strict=True):
                if piece is None:
                    self._put(variable, value)
                else:
                    known = pieces.setdefault(variable.ordinal, {})
                    known[piece.number] = value
            if is_fresh:
                version, writes = totals
                store.set_pulled_version(shard, version)
                store.set_pulled_writes(shard, writes)
                self._gradient_counts.set_pulled(shard, counts)
                for ledger, number in zip(self.ledgers, updates, strict=True):
                    ledger.set_pulled(shard, number)
        for ordinal, values in pieces.items():
            variable = store.variables[ordinal]
            ordered = [values[number] for number in sorted(values)]
            self._put(variable, tf.concat(ordered, 0))

    def _read_under_lock(self, shard, here, lock, held, marks):
        """Their values, brought here, and what the server has counted.

        Args:
          shard: Number of the server.
          here: List of (variable, `Piece` or None).
          lock: Its lock, None if it has not been taken.
          held: The operation after which all locks are held, or None.
          marks: What else is read before it is freed, a list of tensors.
        """
        store = self._store
        if lock is None:
            lock = store.lock(shard)
            held = lock.op
        with tf.control_dependencies([held]):
            with tf.device(store.devices[shard]):
                values = []
                for variable, piece in here:
                    value = tf.raw_ops.ReadVariableOp(
                        resource=store.handle(variable, shard, piece),
                        dtype=variable.dtype,
                    )
                    value.set_shape(variable.shape_of(piece))
                    values.append(value)
                values.append(store.counter("version", shard).read())
                values.append(store.writes(shard).read_or_zero())
                values += [
                    ledger.updates(shard).read() for ledger in self.ledgers
                ]
                values += self._gradient_counts.read_on(shard)
                noted = self.note_given(shard, here, values)
        read = [v.op for v in (*values, *marks)]
        with tf.control_dependencies([*read, *noted]):
            store.unlock(shard, lock)
        home = transfer.move(
            values, source=store.devices[shard], target=store.worker_device
        )
        version, writes, *rest = home[len(here) :]
        updates, counts = rest[: len(self.ledgers)], rest[len(self.ledgers) :]
        return home[: len(here)], (version, writes), counts, updates

    def note_given(self, shard, here, values):
        """Builds the note of what this worker now has, for its correction.

        Args:
          shard: Number of the server.
          here: List of (variable, `Piece` or None).
          values: List of tensors there, which begins with theirs.

        Returns:
          List of operations.
        """
        return self._corrector.note_given(shard, here, values[: len(here)])

    def _put(self, variable, value):
        if variable.role is Role.ITERATIONS:
            # This worker's steps that have not been exchanged yet (gradient
            # accumulation) count on top.
            ahead = variable.read_value() - variable.pulled.read_value()
            variable.pulled.assign_replica(value)
            value = value + ahead
        variable.assign_replica(value)
