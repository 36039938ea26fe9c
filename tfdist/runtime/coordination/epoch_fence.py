"""A ledger begins a new epoch when servers have lost what they held.

A server that was killed has lost the gradients that lay there until they were
decided over, and how much of the log it had carried out; the first server has
lost the decisions as well. So nothing undecided or not yet carried out may
count any more: what a worker sends of the epoch before is void, on all servers
(a fencing token). Workers whose gradients are void compute new ones.

If the worker that begins an epoch dies in the middle, the next one begins it
again: the first server takes note of the servers' lives last.
"""

import dataclasses

from absl import logging
import tensorflow as tf

from tfdist.runtime.variables import resources
from tfdist.runtime.variables import traced_calls
from tfdist.synchronization import state as state_lib
from tfdist.synchronization.state import Phase
from tfdist.synchronization.state import Reason
from tfdist.synchronization.state import Status


@dataclasses.dataclass(frozen=True)
class Renewed:
    """Fate of the gradients of the epoch before.

    Attributes:
      began: Whether this call has begun a new epoch.
      lost: Gradients that no server has applied and none will, by worker.
      torn: Gradients that were applied on some servers and on others not.
    """

    began: bool
    lost: tuple
    torn: int

    def log(self):
        """Says so."""
        if self.began:
            logging.warning(
                "Gradients that servers had received and not applied are "
                "lost: %d. Applied on some servers only: %d.",
                sum(self.lost),
                self.torn,
            )


class EpochFence:
    """Begins new epochs of one ledger.

    Args:
      ledger: The `Ledger`.
      store: The `ParameterStore`.
      num_workers: Number of workers.
    """

    def __init__(self, ledger, store, num_workers):
        self._ledger = ledger
        self._store = store
        self._num_workers = num_workers
        # By server: types of what lies there until it is decided over.
        self._staged = {}
        self._functions = {}

    def note_staged(self, shard, dtypes):
        """Takes note of what this worker's steps leave on a server."""
        self._staged[shard] = tuple(dtypes)

    def build_create(self, incarnations):
        """Builds, on the first server, what a new ledger has beside a state.

        Args:
          incarnations: List of int, one for each server.
        """
        return [
            tf.raw_ops.AssignVariableOp(
                resource=self._ledger.incarnations(),
                value=tf.constant(incarnations, tf.int64),
            ),
        ]

    def renew(self, incarnations, expected=None, accepted=0):
        """See `Ledger.renew`.

        Args:
          incarnations: List of int, one for each server.
          expected: List of bool, who is waited for if the first server has
            lost its state; None for all.
          accepted: Gradients of this worker that it knows were accepted.

        Returns:
          A `Renewed`.
        """
        if expected is None:
            expected = [True] * self._num_workers
        given = (
            tf.constant(incarnations, tf.int64),
            tf.constant(expected),
            tf.constant(accepted, tf.int64),
        )
        key = tuple(sorted(self._staged.items()))
        if key not in self._functions:
            self._functions[key] = traced_calls.trace(self._build, *given)
        began, epoch, lost, torn = self._functions[key](*given)
        self._ledger.set_epoch(epoch)
        return Renewed(bool(began), tuple(lost.numpy().tolist()), int(torn))

    def _build(self, incarnations, expected, accepted):
        store, ledger = self._store, self._ledger
        home = store.worker_device
        with tf.device(store.devices[0]):
            mine = tf.identity(incarnations)
            expected = tf.identity(expected)
            accepted = tf.identity(accepted)
        with tf.control_dependencies([mine.op, expected.op, accepted.op]):
            locks = [store.lock(0, ledger.lock_name)]
        # In the order of servers. Steps hold one of these at a time, and not
        # while they wait for the ledger's.
        for shard in range(store.num_shards):
            with tf.control_dependencies([locks[-1].op]):
                locks.append(store.lock(shard))
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        with tf.control_dependencies([locks[-1].op]):
            counted = [
                (
                    ledger.executed(k).read_or_zero(),
                    ledger.updates(k).read_or_zero(),
                )
                for k in range(store.num_shards)
            ]
            with tf.device(store.devices[0]):
                theirs = tf.raw_ops.ReadVariableOp(
                    resource=ledger.incarnations(), dtype=tf.int64
                )
                theirs.set_shape([store.num_shards])
                same = tf.equal(mine, theirs)
                stale = tf.logical_not(tf.reduce_all(same))
                executed = tf.stack([e for e, _ in counted])
                updates = tf.stack([u for _, u in counted])
                old = ledger.read_state()
                now = tf.cast(tf.timestamp() * 1e6, tf.int64)
                new, lost, torn = self._next(
                    old, same, executed, updates, expected, now
                )
                new = state_lib.where(stale, new, old)
                new = self._know_accepted(new, accepted)
                lost = tf.where(stale, lost, tf.zeros_like(lost))
                epoch = tf.where(stale, now, ledger.epoch(0).read_or_zero())
                # First: what workers still send of the old epoch is void.
                begun = ledger.epoch(0).set(epoch)
                with tf.control_dependencies([begun]):
                    decided = tf.raw_ops.AssignVariableOp(
                        resource=ledger.state_handle(), value=new.pack()
                    )
            # TensorFlow does not know that branches have these in common.
            done = [executed.op, updates.op, epoch.op, decided]
            with tf.control_dependencies(done):
                for shard in range(store.num_shards):
                    done += self._renew_server(shard, stale, epoch, new.version)
            with tf.control_dependencies(done), tf.device(store.devices[0]):
                # Last: if this worker dies before, the next one renews again.
                tf.raw_ops.AssignVariableOp(
                    resource=ledger.incarnations(), value=mine
                )
                # Who waits is to look.
                ledger.build_wake(tf.logical_and(stale, old.waiting))
        effects = resources.effects(graph.get_operations()[before:])
        after = [*effects, lost.op, torn.op, epoch.op]
        for shard in reversed(range(store.num_shards)):
            with tf.control_dependencies(after):
                after = [store.unlock(shard, locks[shard + 1])]
        with tf.control_dependencies(after):
            unlocked = store.unlock(0, locks[0])
        with tf.control_dependencies([unlocked]), tf.device(home):
            return [tf.identity(t) for t in (stale, epoch, lost, torn)]

    def _know_accepted(self, state, accepted):
        """The first server may have lost count of this worker's gradients."""
        mine = tf.equal(tf.range(self._num_workers), self._store.worker_id)
        missing = tf.maximum(
            accepted - state.accepted[self._store.worker_id],
            tf.zeros([], tf.int64),
        )
        return state.set(
            mine,
            accepted=state.accepted + missing,
            pushed=state.pushed + missing,
        )

    def _renew_server(self, shard, stale, epoch, version):
        ledger = self._ledger
        device = self._store.devices[shard]

        def renew():
            with tf.device(device):
                begun = ledger.epoch(shard).set(epoch)
                with tf.control_dependencies([begun]):
                    ledger.executed(shard).set(0)
                    ledger.updates(shard).set(version)
                    # Those that a server still has stay true.
                    ledger.leftovers.create(shard)
                    if self._staged.get(shard):
                        tf.raw_ops.MapClear(
                            dtypes=self._staged[shard],
                            shared_name=ledger.name_of("gradients"),
                        )
            return True

        with tf.device(device):
            return [tf.cond(stale, renew, lambda: False).op]

    def _next(self, old, same, executed, updates, expected, now):
        """The state of the new epoch, lost gradients by worker, torn ones.

        Args:
          old: The `State` that is there: what it was, if the first server is
            in the life that it knew; else that of a snapshot, or a new one.
          same: Which servers are in the life that the state knew.
          executed: Entries of the log that each has carried out.
          updates: Updates that each has done.
          expected: Who is waited for if the state is lost.
          now: Microseconds.
        """
        healthy = same[0]
        size = tf.shape(old.log_key, tf.int64)[0]
        places = tf.range(size)
        # The number of the entry in each place of the ring; negative: none.
        numbers = old.head - 1 - tf.math.floormod(old.head - 1 - places, size)
        known = healthy & (numbers >= 0)
        gradients = known & (old.log_key > state_lib.NO_GRADIENT)
        nothing = tf.constant(-1, tf.int64)
        closed = tf.reduce_max(
            tf.where(known & (old.log_count > 0), numbers, nothing)
        )
        most = tf.reduce_max(tf.where(same, executed, tf.zeros_like(executed)))
        least = tf.reduce_min(tf.where(same, executed, old.head))
        gone = gradients & ((numbers > closed) | (numbers >= most))
        torn = gradients & ~gone & (numbers >= least)
        workers = tf.range(self._num_workers, dtype=tf.int64)
        theirs = tf.cast(
            gone[:, None] & tf.equal(old.log_worker[:, None], workers), tf.int64
        )
        by_worker = tf.reduce_sum(theirs, 0)
        late = tf.reduce_sum(theirs * old.log_staleness[:, None], 0)
        undecided = tf.cast(old.arrived & healthy, tf.int64)
        # What had arrived by a snapshot may have been decided over since.
        forgotten = tf.cast(old.arrived & ~healthy, tf.int64)
        zero = tf.zeros([self._num_workers], tf.int64)
        survivors = tf.where(
            expected,
            tf.fill(
                [self._num_workers], tf.constant(Status.EXPECTED, tf.int64)
            ),
            tf.fill([self._num_workers], tf.constant(Status.GONE, tf.int64)),
        )
        silent = zero + tf.constant(Reason.SILENT, tf.int64)
        # Who is gone by plan is still no part of the cluster.
        silent = tf.where(old.enlisted, silent, old.reason)
        silent = tf.where(expected, zero, silent)
        new = dataclasses.replace(
            old,
            version=tf.maximum(old.version, tf.reduce_max(updates)),
            head=tf.zeros([], tf.int64),
            in_round=tf.zeros([], tf.int64),
            status=tf.where(healthy, old.status, survivors),
            reason=tf.where(healthy, old.reason, silent),
            phase=zero + tf.constant(Phase.COMPUTING, tf.int64),
            contributed=zero,
            since=tf.fill([self._num_workers], now),
            started_at=tf.where(healthy, old.started_at, now),
            pushed=old.pushed - forgotten,
            accepted=old.accepted - by_worker,
            dropped=old.dropped + by_worker + undecided,
            staleness_sum=old.staleness_sum - late,
            # A server that comes back with a snapshot remembers who was
            # forgotten since, and an entry that says so may be void.
            remembered=zero + 1,
            log_key=tf.zeros_like(old.log_key),
            log_staleness=tf.zeros_like(old.log_key),
            log_first=tf.zeros_like(old.log_key),
            log_count=tf.zeros_like(old.log_key),
            log_worker=tf.zeros_like(old.log_key),
        )
        lost = by_worker + undecided
        return new, lost, tf.reduce_sum(tf.cast(torn, tf.int64))
