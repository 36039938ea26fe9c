"""The ledger of a synchronization: one state, one lock, all decisions.

Whoever has an event to tell changes the state (`shared_state`): a worker that
has a gradient (`submission`), each heartbeat (`Ledger.tick`), and who finds
that servers have lost what they held (`epoch_fence`).
"""

import hashlib
import time

import numpy as np
import tensorflow as tf

from tfdist.runtime.coordination import agreement
from tfdist.runtime.coordination import epoch_fence
from tfdist.runtime.coordination import orphaned_gradients
from tfdist.runtime.coordination import own_rows
from tfdist.runtime.coordination import shared_state
from tfdist.runtime.coordination import submission
from tfdist.runtime.coordination import wake_up_queues
from tfdist.synchronization import events
from tfdist.synchronization import state as state_lib
from tfdist.synchronization import state_machine
from tfdist.synchronization import traced_events

_NAME = "ledger"
_MAX_WORKERS = 4096
# Before the digest in the name of a ledger that is not an optimizer's first.
LATER = "-"


def later_name(name, layout):
    """The name of an optimizer's ledger for gradients of other variables.

    Args:
      name: That of its first one.
      layout: From `agreement.layout_of`.
    """
    numbers = " ".join(agreement.numbers_of(layout)).encode()
    return f"{name}{LATER}{hashlib.sha256(numbers).hexdigest()[:16]}"


def ordinal_of(name):
    """The ordinal of the step counter whose ledger has that name."""
    return int(name.split(LATER)[0])


def is_held(store, name, num_workers):
    """Whether there is a ledger of that name on the servers."""
    prefix = shared_state.prefix(name, num_workers)
    return bool(agreement.left(store, f"{prefix}/method"))


class Ledger:
    """The decisions over the gradients of all workers for one optimizer.

    Args:
      store: The `ParameterStore`.
      recovery: The `Recovery`, which knows the lives of servers.
      name: The same on all workers, and this optimizer's alone.
      method: The `Synchronization`, resolved.
      correction: The `Correction` of late gradients, or None.
      num_workers: Number of workers.
      initial_workers: How many of them, the first, are waited for at first.
      worker_id: Number of this one.
      patience: A `Patience`.
      attendance: Callable without arguments that builds, on the first server,
        the reading of an `Attendance`.
    """

    def __init__(
        self,
        store,
        recovery,
        name,
        method,
        correction,
        *,
        num_workers,
        initial_workers,
        worker_id,
        patience,
        attendance,
    ):
        self.method = method
        # Whether workers that are gone are forgotten by the servers.
        self.forgets = correction is not None and correction.remembers_workers
        self._events = traced_events.traced_events(
            state_machine.Decisions(method, patience, self.forgets), num_workers
        )
        # Gradients of this worker that were accepted, in earlier lives of its
        # process, and in this one, by what it was told in its steps.
        self.accepted_before = 0
        self._told_accepted = store.worker_variable(
            tf.zeros([], tf.int64), "accepted"
        )
        self._name = name
        self._store = store
        self._recovery = recovery
        self._num_workers = num_workers
        self._initial_workers = initial_workers
        self._worker = worker_id
        self._mailboxes = wake_up_queues.WakeUpQueues(
            store, f"{_NAME}/{name}/mailbox", num_workers
        )
        decides = shared_state.prefix(name, num_workers)
        self._shared = shared_state.SharedState(
            store,
            decides,
            num_workers,
            attendance=attendance,
            mailboxes=self._mailboxes if method.waits else None,
        )
        self.leftovers = orphaned_gradients.OrphanedGradients(
            self.resource, num_workers
        )
        self._arrival = submission.Submission(
            self, self._shared, self._events, self._mailboxes, worker_id
        )
        # By server: updates of this optimizer that are in the replicas.
        self._pulled = [
            store.worker_variable(tf.zeros([], tf.int64), f"pulled_{k}")
            for k in range(store.num_shards)
        ]
        # None where the strategy has no tables.
        self.row_counts = None
        if store.tables.from_bytes is not None:
            self.row_counts = own_rows.RowCounts(store, self._counter)
        # Starts afresh when a server has lost what it held. What a worker sends
        # of an epoch that has ended counts nowhere any more.
        self._epoch = store.worker_variable(tf.zeros([], tf.int64), "epoch")
        # The same, for `tick`, which is called in other threads as well; and
        # the one that servers are in, as the last `tick` found.
        self._known_epoch = self._found_epoch = 0
        self._renewal = epoch_fence.EpochFence(self, store, num_workers)
        self.agreement = agreement.Agreement(
            store,
            self.lock_name,
            decides,
            f"synchronization={method!r}, {correction=!r}",
            self._create,
            self._is_made,
        )
        # How many workers made up the cluster at the last `tick`.
        self.num_enlisted = num_workers
        # No other gradient of any worker ever has the same key: it counts on
        # from the microseconds at which this process got here.
        self._key = store.worker_variable(
            tf.constant(
                time.time_ns() // 1000 * _MAX_WORKERS + worker_id, tf.int64
            ),
            "gradient_key",
        )
        self._tick = store.function(
            0,
            self._build_tick,
            [
                tf.TensorSpec([len(traced_events.TOLD)], tf.bool),
                tf.TensorSpec([], tf.int64),
            ],
        )

    # Names.

    @property
    def name(self):
        """The same on all workers, and this optimizer's alone."""
        return self._name

    @property
    def ordinal(self):
        """The ordinal of the optimizer's step counter."""
        return ordinal_of(self._name)

    def resource(self, shard, name, dtype, shape):
        """Handle of a resource of this optimizer's on a server."""
        return self._store.resource(
            shard, f"{_NAME}/{self._name}/{name}", dtype, shape
        )

    def name_of(self, name):
        """Shared name of something of this optimizer's on any server."""
        return self._store.name_of(f"{_NAME}/{self._name}/{name}")

    @property
    def lock_name(self):
        """Name of the lock of the state, on the first server."""
        return self._shared.lock_name

    def _counter(self, name, shard):
        return self._store.counter(f"{_NAME}/{self._name}/{name}", shard)

    def executed(self, shard):
        """`Counter` of the entries of the log that a server has done."""
        return self._counter("executed", shard)

    def updates(self, shard):
        """`Counter` of the updates that a server has done."""
        return self._counter("updates", shard)

    def epoch(self, shard):
        """`Counter` of the epoch that a server is in."""
        return self._counter("epoch", shard)

    def incarnations(self):
        """Handle of the lives of the servers that the state is about."""
        return self.resource(
            0, "incarnations", tf.int64, [self._store.num_shards]
        )

    def read_epoch(self):
        """Builds the reading of what this worker takes for the epoch."""
        return self._epoch.read_value()

    def set_epoch(self, epoch):
        """Sets what this worker takes for the epoch, eagerly."""
        self._epoch.assign_replica(epoch)
        self._known_epoch = self._found_epoch = int(epoch)

    @property
    def is_behind(self):
        """Whether gradients of this worker are void.

        It has not noticed that servers have lost what they held, as its steps
        do not use them, and another worker has begun a new epoch.
        """
        return self._found_epoch != self._known_epoch

    def pulled_by_server(self):
        """Updates in the replicas of each server, scalar int64 tensors."""
        return [pulled.read_value() for pulled in self._pulled]

    def lacks_updates(self, state):
        """Whether a `State` has updates that the replicas have not."""
        # Of a server without parameters none is pulled.
        pulled = max(int(one.numpy()) for one in self._pulled)
        return bool(state.version > pulled)

    def set_pulled(self, shard, value):
        """Sets the updates in the replicas; returns the operation."""
        return tf.raw_ops.AssignVariableOp(
            resource=self._pulled[shard].local_handle, value=value
        )

    def forget_row_counts(self):
        """Builds: nothing is known of rows that others update until a push."""
        if self.row_counts is not None:
            self.row_counts.build_forget()

    @property
    def num_workers(self):
        """Number of workers."""
        return self._num_workers

    @property
    def worker(self):
        """Number of this one."""
        return self._worker

    def next_key(self):
        """A key that no other gradient has, scalar int64 tensor.

        Larger than all that any life of this worker has had before.
        """
        self._key.assign_add(_MAX_WORKERS, read_value=False)
        return self._key.read_value()

    # In the training step.

    def arrive(
        self, key, pulled, after, last=False, finite=None, claim=lambda _: None
    ):
        """Builds: tells of a gradient, waits until it is decided over.

        Args:
          key: Under which the servers keep it, scalar int64 tensor.
          pulled: Version that it was computed from, scalar int64 tensor.
          after: Operations that have brought it to the servers.
          last: bool, whether this worker trains no more.
          finite: Whether the gradient may count, scalar bool tensor; None if
            all do.
          claim: Callable that is given whether the gradient is of the epoch of
            the state, and builds whether its batch is new, scalar bool
            tensors; None if nobody looks.

        Returns:
          A `Decision`.
        """
        return self._arrival.build(key, pulled, after, last, finite, claim)

    # Out of it.

    def prepare(self):
        """Makes the ledger on the server if there is none yet.

        Returns:
          Whether it has decided over an update.

        Raises:
          ValueError: Another worker uses another method.
        """
        self.agreement.check_method()
        nothing = np.zeros(len(traced_events.TOLD), bool)
        state, epoch, theirs = self._tick_and_ask(nothing)
        if self._recovery.is_needed:
            lives = self._recovery.incarnations
            if theirs.tolist() == list(lives):
                self.set_epoch(tf.constant(epoch, tf.int64))
            else:
                self.renew(lives)
                state = self.tick()
        self.accepted_before = int(state.accepted[self._worker])
        self._begin_keys(
            max(state.key[self._worker], state.fence[self._worker])
        )
        return bool(state.version)

    def _begin_keys(self, known):
        """Keys go on from there if the clock was set back since."""
        last = int(known) // _MAX_WORKERS * _MAX_WORKERS + self._worker
        key = max(int(self._key.numpy()), last + _MAX_WORKERS)
        self._key.assign_replica(tf.constant(key, tf.int64))

    def note_accepted(self, accepted):
        """Builds the count of an own gradient that was, a bool tensor."""
        return tf.raw_ops.AssignAddVariableOp(
            resource=self._told_accepted.local_handle,
            value=tf.cast(accepted, tf.int64),
        )

    @property
    def known_accepted(self):
        """Gradients of this worker that it knows were accepted, an int."""
        return self.accepted_before + int(self._told_accepted.numpy())

    def own_accepted(self):
        """Gradients of this process that were accepted, an int."""
        state = self.tick()
        return int(state.accepted[self._worker]) - self.accepted_before

    def will_forget_all(self):
        """Whether servers forget all workers when the next gradient arrives.

        As all whose gradients they have seen are gone, and nothing of theirs
        is undecided.
        """
        if not self.forgets:
            return False
        state = self.tick()
        remembered = state.remembered == 1
        forgotten = events.forgettable(state, returning=self._worker).numpy()
        return bool(remembered.any() and forgotten[remembered].all())

    def renew(self, incarnations, expected=None, accepted=0):
        """Begins a new epoch if servers have lost what they held.

        Args:
          incarnations: The lives that the servers are in now, list of int.
          expected: List of bool: which workers are waited for if the first
            server is one of them; None for all.
          accepted: Gradients of this worker that it knows were accepted.

        Returns:
          A `Renewed`.
        """
        return self._renewal.renew(incarnations, expected, accepted)

    def build_wake(self, workers):
        """Builds: who waits, of the bool vector `workers`, is to look."""
        if self.method.waits:
            self._mailboxes.wake(workers)

    def note_staged(self, shard, dtypes):
        """Takes note of what this worker's steps leave on a server."""
        self._renewal.note_staged(shard, dtypes)

    def tick(
        self, leaving=False, working=False, joining=False, preempted=False
    ):
        """Decides again; called with each heartbeat, in any thread.

        So that nobody waits for a worker that has died or was stopped.

        Args:
          leaving: Whether this worker sends no more gradients for now.
          working: Whether it has made a step that it has not told of.
          joining: Whether it begins to train.
          preempted: Whether it is to leave, and not to wait in a step.

        Returns:
          The `State` after it, of NumPy values.
        """
        told = np.array([working, leaving, joining, preempted])
        return self._tick_and_ask(told)[0]

    def _tick_and_ask(self, told):
        """Decides again.

        Args:
          told: Of each of `traced_events.TOLD`, a bool vector.

        Returns:
          The `State` after it, of NumPy values; its epoch; and the lives of
          the servers that it is about, an int64 vector.
        """
        known = self._known_epoch
        vector, enlisted, epoch, lives = self._tick(told, np.int64(known))
        # Else another thread has set it in the meantime, to a later one.
        if known == self._known_epoch:
            self._found_epoch = int(epoch)
        self.num_enlisted = int(enlisted)
        return self._shared.as_numpy(vector), epoch, lives

    def _create(self):
        """Builds the first state, on the first server."""
        size = state_lib.size(self._num_workers)
        state = state_lib.State.unpack(
            tf.zeros([size], tf.int64), self._num_workers
        )
        state = events.absent(state, self._initial_workers)
        done = [
            tf.raw_ops.AssignVariableOp(
                resource=self.state_handle(), value=state.pack()
            )
        ]
        for shard in range(self._store.num_shards):
            with tf.device(self._store.devices[shard]):
                done.append(self.executed(shard).set(0))
                done.append(self.updates(shard).set(0))
                done.append(self.epoch(shard).set(0))
                done += self.leftovers.create(shard)
        return done + self._renewal.build_create(self._recovery.incarnations)

    def _is_made(self):
        """Builds, on the first server: whether it has what decides."""
        handles = (
            self.state_handle(),
            self.epoch(0).handle,
            self.incarnations(),
        )
        return tf.reduce_all(
            [tf.raw_ops.VarIsInitializedOp(resource=h) for h in handles]
        )

    def _build_tick(self, what, my_epoch):
        def happened(state, attendance):
            event = traced_events.event(attendance, self._worker)
            state, woken, over, enlisted = self._events.call(
                "tick", state, event, what
            )
            if self.method.waits:
                over |= ~self.is_current(my_epoch)
                self._mailboxes.wake_again(self._worker, over)
            lives = tf.raw_ops.ReadVariableOp(
                resource=self.incarnations(), dtype=tf.int64
            )
            return state, woken, (state, enlisted, self.epoch(0).read(), lives)

        results, _ = self._shared.transact(happened, after=[])
        return list(results)

    # On the server.

    def is_current(self, epoch):
        """Builds: whether the state, on the first server, is of that epoch."""
        return tf.equal(self.epoch(0).read(), epoch)

    def state_handle(self):
        """Handle of the packed `State`, on the first server."""
        return self._shared.handle()

    def read_state(self):
        """Builds the reading of the `State`, under its lock."""
        return self._shared.read()
