"""Whether servers hold what they should, for a worker that joins.

A server that was started again is empty, or holds an old snapshot, until a
worker that was there before has restored it. Who joins in between must neither
take that for the state of the training nor for a cluster that begins.
"""

import enum
import time

from absl import logging
import tensorflow as tf

from tfdist.cluster import member_table
from tfdist.cluster import snapshots
from tfdist.cluster import waiting
from tfdist.runtime.variables import traced_calls

# A worker that was there before notices the loss of a server within 10 s, and
# at once where the server's port is closed.
_NOTICE_SECONDS = 12.0
WAITED_FOR = "a worker that was there before to restore parameter server"
"""Said of empty servers, with their names after it."""


class Holding(enum.IntEnum):
    """Completeness of one strategy's state on a server.

    EMPTY: Nothing.
    SNAPSHOT: What its process has found, and nobody has looked at.
    SETTLED: The newest that there is.
    """

    EMPTY = 0
    SNAPSHOT = 1
    SETTLED = 2


class ServerReadiness:
    """Looks at all servers, and says that one is settled.

    Args:
      store: The `ParameterStore`.
      names: Names of the servers.
    """

    def __init__(self, store, names):
        self._store = store
        self._names = names
        self._look = tf.function(self._build_look, autograph=False)
        self._settlers = {}

    def look(self):
        """Looks at all servers.

        Returns:
          The `Holding` of each, and whether each may lack variables because
          nobody was there to restore it: two lists.
        """
        holdings, unrestored = self._store.call(self._look)
        return [Holding(int(h)) for h in holdings], unrestored.numpy().tolist()

    def settle(self, shard, is_restored=True):
        """Says that a server holds the newest that there is.

        Args:
          shard: Number of the server.
          is_restored: Whether a worker that was there before has seen to that.
        """
        key = shard, is_restored
        if key not in self._settlers:

            def build():
                with tf.device(self._store.devices[shard]):
                    flag = snapshots.build_is_unrestored(not is_restored)
                    with tf.control_dependencies([flag]):
                        snapshots.build_is_from_snapshot(False)

            self._settlers[key] = tf.function(build, autograph=False)
        self._settlers[key]()

    def wait(self, is_chief, timeout, others=list):
        """Waits until a worker that joins can take what servers hold.

        Args:
          is_chief: Whether this worker gives first values.
          timeout: Seconds.
          others: Callable without arguments that gives the `Member` of each
            other worker: one that has trained restores empty servers.

        Returns:
          Whether servers may lack variables: some were started again when
          nobody was there to restore them, and others hold something, or they
          do by a snapshot.

        Raises:
          TimeoutError: Some servers stay empty; the message names them.
        """
        changed = time.monotonic()
        found, unrestored = self.look()

        def unsettled():
            return ", ".join(
                f"{name} ({holding.name.lower()})"
                for name, holding in zip(self._names, found, strict=True)
                if holding is not Holding.SETTLED
            )

        def is_settled():
            nonlocal changed
            before = list(found)
            found[:], unrestored[:] = self.look()
            if found != before:
                # A worker restores one server after the other.
                changed = time.monotonic()
            if len(set(found)) == 1 and Holding.SNAPSHOT not in found:
                is_empty = is_chief and Holding.EMPTY in found
                if not (is_empty and any(map(_has_trained, others()))):
                    return True
            if Holding.EMPTY in found and not is_chief:
                return False
            return time.monotonic() - changed > _NOTICE_SECONDS

        waiting.wait_until(
            is_settled,
            what=lambda: f"{WAITED_FOR} {unsettled()}",
            timeout=timeout,
        )
        if set(found) == {Holding.EMPTY}:
            return False
        for shard, holding in enumerate(found):
            if holding is Holding.SNAPSHOT:
                logging.warning(
                    "The training begins with values of a snapshot: %s. If it "
                    "is of another run, end this one, remove the directory and "
                    "start again.",
                    self.snapshot_of(shard),
                )
            if holding is not Holding.SETTLED:
                unrestored[shard] = True
                self.settle(shard, is_restored=False)
            if holding is Holding.EMPTY:
                logging.warning(
                    "Nobody restores parameter server %s: what it held starts "
                    "afresh.",
                    self._names[shard],
                )
        return any(unrestored)

    def snapshot_of(self, shard):
        """Returns the snapshot that a server began with, "" for none."""
        store = self._store

        def build():
            with tf.device(store.devices[shard]):
                text = snapshots.build_found()
            with tf.device(store.worker_device):
                return tf.identity(text)

        return store.call(traced_calls.trace(build)).numpy().decode()

    def _build_look(self):
        store = self._store
        found, unrestored = [], []
        for shard in range(store.num_shards):
            counter = store.counter("version", shard)
            with tf.device(store.devices[shard]):
                held = tf.raw_ops.VarIsInitializedOp(resource=counter.handle)
                old = snapshots.build_is_from_snapshot()
                holding = tf.where(
                    held,
                    tf.where(old, int(Holding.SNAPSHOT), int(Holding.SETTLED)),
                    int(Holding.EMPTY),
                )
                flag = snapshots.build_is_unrestored()
            with tf.device(store.worker_device):
                found.append(tf.identity(holding))
                unrestored.append(tf.identity(flag))
        with tf.device(store.worker_device):
            return tf.stack(found), tf.stack(unrestored)


def _has_trained(member):
    """Whether a worker lives that has trained before this one came."""
    is_alive = member.state is member_table.MemberState.ALIVE
    is_heard = member.silent_for < _NOTICE_SECONDS
    return is_alive and is_heard and member.word.reached > 0
