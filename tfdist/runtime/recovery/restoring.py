"""The graphs by which workers give a server back what it has lost.

A server that was started again is empty, or holds the snapshot that its
process has found. Workers *offer* what they hold: the version of the server
that their replicas show, and how many assignments outside of updates. Whoever
holds the newest puts it there; what is newer already stays. All of that happens
under the server's locks, in one graph: a worker that dies in the middle of it
changes nothing, and another one does it.
"""

import dataclasses

import tensorflow as tf

from tfdist.cluster import resource_values
from tfdist.cluster import snapshots
from tfdist.cluster import table_snapshots
from tfdist.runtime.exchange import rows
from tfdist.runtime.variables import copies
from tfdist.runtime.variables import resources
from tfdist.runtime.variables import table_values
from tfdist.runtime.variables import traced_calls
from tfdist.runtime.variables import transfer
from tfdist.runtime.variables.variables import Role

_LOCK = "recovery/lock"
# Steps without an optimizer count as assignments: there may be many.
_WRITES_BASE = 1 << 28
# What every exchange pulls.
_PULLED = (Role.PARAMETER, Role.STATE, Role.AVERAGED, Role.ITERATIONS)


@dataclasses.dataclass(frozen=True)
class Offers:
    """Offers that one server knows of.

    Attributes:
      orders: By worker, the order of what its replicas show: the version and
        the number of assignments in one number, see `_order`; 0 for a worker
        that has offered nothing to this life of the server.
      held: The order of what the server holds, 0 for nothing.
      settled: Whether a worker has found that to be the newest that there is;
        else it may be but a snapshot.
    """

    orders: tuple
    held: int
    settled: bool


@dataclasses.dataclass(frozen=True)
class Restored:
    """Values that one worker has put onto a server.

    Attributes:
      done: Whether it has; else the server holds something newer.
      before: The version that was there, -1 for none.
      version: The version that is there now.
      kept: How many variables (optimizer slots and the like) were there from
        a snapshot and stayed.
      stale: How many of those were not, and begin from what this worker read
        of them last: mostly their first values.
      kept_tables: How many tables and their slots were there from a snapshot.
      new_tables: How many were not, and begin with their first values.
    """

    done: bool
    before: int
    version: int
    kept: int
    stale: int
    kept_tables: int = 0
    new_tables: int = 0


class Restorer:
    """Builds and calls what one store restores servers with.

    Args:
      store: The `ParameterStore`.
      gradient_counts: Its `GradientCounts`.
      synchronizer: Its `Synchronizer`.
      num_workers: Number of workers.
    """

    def __init__(self, store, gradient_counts, synchronizer, num_workers):
        self._store = store
        self._gradient_counts = gradient_counts
        self._synchronizer = synchronizer
        self._first_values = synchronizer.first_values
        self._num_workers = num_workers
        self._traced = traced_calls.Traced(store)

    def offer(self, shard, takes_part):
        """Tells a server what this worker holds, and reads what others do.

        Args:
          shard: Number of the server.
          takes_part: Whether this worker has something to offer.

        Returns:
          The `Offers`.
        """
        orders, held, settled = self._traced.call(
            ("offer", shard, takes_part),
            lambda: self._build_offer(shard, takes_part),
        )
        return Offers(tuple(orders.numpy().tolist()), int(held), bool(settled))

    def restore(self, shard):
        """Puts this worker's replicas onto a server that has nothing newer.

        Args:
          shard: Number of the server.

        Returns:
          A `Restored`.
        """
        number = self._synchronizer.committed
        done, *numbers = self._traced.call(
            ("restore", shard, number), lambda: self._build_restore(shard)
        )
        return Restored(bool(done), *map(int, numbers))

    def complete(self, shard):
        """Puts onto a server what it has not, of all that this worker knows.

        A snapshot may have been made before variables were there, or a worker
        have restored the server that has joined but now.

        Args:
          shard: Number of the server.

        Returns:
          How many variables that were.
        """
        for variable in self._variables():
            if variable.rows_pulled is not None and variable.shard == shard:
                self._synchronizer.stamp_rows(variable)
        return self._first_values.complete_on(
            shard, self._variables(), self._synchronizer.committed
        )

    def lost_by_rows(self, shard):
        """Reads what rows of tables on a restored server have lost.

        Args:
          shard: Number of the server.

        Returns:
          Of the updates that the server's version counts, the least and the
          most that are lost in a row there, two ints; None without tables.
        """
        if not self._tables():
            return None

        def build():
            with tf.device(self._store.devices[shard]):
                lost = table_snapshots.build_lost(self._version_name())
            return self._home(lost)

        least, most = self._traced.call(("lost", shard), build).numpy()
        return int(least), int(most)

    def _version_name(self):
        return self._store.name_of("version")

    def _home(self, tensor):
        with tf.device(self._store.worker_device):
            return tf.identity(tensor)

    def _there(self, shard):
        """One more than the version that the server holds, 0 for none."""
        version = self._store.counter("version", shard)
        known = tf.raw_ops.VarIsInitializedOp(resource=version.handle)
        return version.read_or_zero() + tf.cast(known, tf.int64)

    def _mine(self, shard):
        return self._store.pulled_version(shard) + 1

    def _build_offer(self, shard, takes_part):
        store = self._store
        device = store.devices[shard]
        mine = tf.zeros([], tf.int64)
        if takes_part:
            mine = _order(self._mine(shard), store.pulled_writes(shard))
        size = [self._num_workers]
        offers = store.resource(shard, "recovery/offers", tf.int64, size)
        with tf.device(device):
            mine = tf.identity(mine)
        with tf.control_dependencies([mine.op]):
            lock = store.lock(shard, _LOCK)
        with tf.control_dependencies([lock.op]), tf.device(device):
            made = resource_values.build_put_if_missing(
                offers, tf.zeros(size, tf.int64)
            )
            with tf.control_dependencies([made]):
                done = [made]
                if takes_part:
                    done = [
                        tf.raw_ops.ResourceScatterUpdate(
                            resource=offers,
                            indices=[store.worker_id],
                            updates=[mine],
                        )
                    ]
            with tf.control_dependencies(done):
                orders = tf.raw_ops.ReadVariableOp(
                    resource=offers, dtype=tf.int64
                )
                there = _order(
                    self._there(shard), store.writes(shard).read_or_zero()
                )
                settled = ~snapshots.build_is_from_snapshot()
        found = [orders, there, settled]
        with tf.control_dependencies([t.op for t in found]):
            store.unlock(shard, lock)
        return [self._home(t) for t in found]

    def _build_restore(self, shard):
        store = self._store
        device = store.devices[shard]
        held = copies.held_by(store, shard, self._variables())
        values = copies.values_here(held)
        tail = [self._mine(shard), store.pulled_writes(shard)]
        tail += self._gradient_counts.pulled(shard)
        moved = transfer.move(
            [*values, *tail], source=store.worker_device, target=device
        )
        number = len(values)
        values, (mine, writes, *counts) = moved[:number], moved[number:]
        with tf.control_dependencies([t.op for t in moved]):
            own = store.lock(shard, _LOCK)
        # Who joins just now may train already from what a snapshot held.
        with tf.control_dependencies([own.op]):
            lock = store.lock(shard)
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        with tf.control_dependencies([lock.op]), tf.device(device):
            there = self._there(shard)
            order = _order(there, store.writes(shard).read_or_zero())

            def restore():
                with tf.device(device):
                    kept, stale = self._assign(shard, held, values, mine)
                    tables = self._fill_tables(shard, there, mine)
                    store.counter("version", shard).set(mine - 1)
                    store.writes(shard).set(writes)
                    self._gradient_counts.put(shard, counts)
                    if shard == 0:
                        self._build_leave_word()
                return True, kept, stale, *tables

            def leave():
                return False, *[tf.zeros([], tf.int32)] * 4

            done, *numbers = tf.cond(
                order < _order(mine, writes), restore, leave
            )
            now = tf.where(done, mine, there)
        effects = resources.effects(graph.get_operations()[before:])
        with tf.control_dependencies([*effects, now.op]):
            unlock = store.unlock(shard, lock)
        with tf.control_dependencies([unlock]):
            store.unlock(shard, own)
        return [self._home(t) for t in (done, there - 1, now - 1, *numbers)]

    def _variables(self):
        return self._store.variables[: self._synchronizer.committed]

    def _tables(self):
        return [v for v in self._variables() if v.role is Role.TABLE]

    def _build_leave_word(self):
        return self._first_values.build_leave_word(
            self._variables(), self._synchronizer.committed
        )

    def _assign(self, shard, held, values, mine):
        """Puts the values there; those of slots where there are none."""
        store = self._store
        kept, stale = [], []
        for (variable, piece), value in zip(held, values, strict=True):
            handle = store.handle(variable, shard, piece)
            if _is_fresh(variable):
                with tf.device(store.devices[shard]):
                    tf.raw_ops.AssignVariableOp(resource=handle, value=value)
                continue
            put = resource_values.build_put_if_missing(handle, value)
            stale.append(tf.cast(put, tf.int32))
            kept.append(1 - stale[-1])
        for variable in self._variables():
            if rows.is_stamped(variable) and variable.shard == shard:
                # Other workers may pull rows of it that this one does not.
                rows.mark_all(store.row_stamps(variable), variable, mine)
        zero = [tf.zeros([], tf.int32)]
        return tf.add_n(kept or zero), tf.add_n(stale or zero)

    def _fill_tables(self, shard, there, mine):
        """Gives first values to rows that the server does not have.

        Args:
          shard: Number of the server.
          there: See `_there`.
          mine: One more than the version that it is about to hold.

        Returns:
          How many tables it has, and how many it had not: int32 scalars.
        """
        tables = self._tables()
        if not tables:
            return [tf.zeros([], tf.int32)] * 2
        new, _ = table_values.build_fill_lost(
            self._store, tables, shard, mine - 1, mine - tf.maximum(there, 1)
        )
        return len(tables) - new, new


def _order(version, writes):
    """Builds a number that is higher the newer what somebody holds.

    Of as many updates, what has more assignments is newer.

    Args:
      version: One more than the version, scalar int64 tensor; 0 for nothing.
      writes: Number of assignments, scalar int64 tensor.

    Returns:
      A scalar int64 tensor; 0 for nothing.
    """
    most = tf.constant(_WRITES_BASE - 1, tf.int64)
    return tf.where(
        version > 0,
        version * _WRITES_BASE + tf.minimum(writes, most),
        tf.zeros([], tf.int64),
    )


def _is_fresh(variable):
    """Whether a worker's replica of it is as fresh as its last pull."""
    if variable.role is Role.STATE and variable.made_by_optimizer:
        # Else update rules alone touch it, on the servers, as with slots.
        return variable.assigned_by_workers
    return variable.role in _PULLED
