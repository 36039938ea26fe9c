"""Memory of models that nobody uses any more.

A worker lets go of a variable when nothing in its process refers to it any
more (`VariableList`). What servers hold of it goes when all workers have let go
of it that are there: each tells the first server, when it has something new to
commit, what it has made so far and what of that it still has; who finds that
nobody has a variable any more takes it, and what belongs to it, from the
servers. A worker that has ended is not waited for, nor one that has not been
heard of for a minute; one that has yet to begin is.

A position among the variables is never used again. To a worker that is started
again, and builds once more a model that the others have freed meanwhile, that
model is *over*: it can be built, and deleted, and to train or evaluate it is an
error (`ModelFreedError`); the next models are those of the others again.
"""

import json
import os
import re
import threading
import time

from absl import logging
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.cluster import member_table as members_lib
from tfdist.cluster import reports
from tfdist.runtime.variables import traced_calls

LOCK = "freeing/lock"
# Whose a resource on a server is, by its name: positions of variables.
_OWNERS = (
    re.compile(
        r"(?:variable|signature|rows|local|ledger)/(\d+)(?:-\w+)?(?:/|$)"
    ),
    re.compile(r"(?:given|mark)/\d+/(\d+)(?:/|$)"),
    re.compile(r"ledger/\d+(?:-\w+)?/correction/(\d+)/"),
)
# Another worker may tell something new just then.
_ATTEMPTS = 3


class ModelFreedError(RuntimeError):
    """A worker that was started again uses a model that all others freed."""


class UnusedModels:
    """Lets go of variables, on this worker and on servers.

    Args:
      runtime: The `Runtime`.
      config: The `ClusterConfig`; None without a cluster's servers, where this
        worker has all for itself.
      membership: This process's `Membership`, or None.
      patience: Seconds for which workers count that have never been seen.
    """

    def __init__(self, runtime, config=None, membership=None, patience=0.0):
        self._runtime = runtime
        self._store = runtime.store
        self._leave_row = None
        self._config = config
        self._membership = membership
        self._patience = patience
        self._began = time.monotonic()
        self._row, self._num_rows = 0, 1
        if config is not None:
            names = members_lib.names_of(config)
            self._row, self._num_rows = (
                names.index(config.task_name),
                len(names),
            )
        # Of all lives of this process; another one begins with nothing.
        self._life = f"{os.getpid()}/{time.time_ns()}"
        self._has_entered = False
        # What this worker has let go of, and servers may still hold.
        self._let_go = set()
        # By server and name, dtypes of what servers held: a snapshot may bring
        # it back.
        self._freed = {}
        # By position: handle and dtype of what is on this worker.
        self._replicas = {}
        self._tidying = threading.Lock()

    def was_made(self, variable):
        """Takes note of a variable that servers are to hold."""
        if not self._runtime.local.keeps_own_values:
            replica = variable.local_handle, variable.dtype
            self._replicas[variable.ordinal] = replica

    def enter(self):
        """Tells the others that this worker has yet to come to all models."""
        if not self._has_entered:
            self._tell(made=0)
            self._has_entered = True

    def tidy(self):
        """Lets go of what nobody uses any more."""
        # What it does may itself have something to commit.
        if not self._tidying.acquire(blocking=False):
            return
        try:
            self._runtime.local.tidy()
            self._store.locals.forget(self._store.locals.gone())
            self._let_go_of(self._store.variables.gone())
            if self._let_go and self._has_entered:
                self._free()
        finally:
            self._tidying.release()

    def free_again(self, shards, from_snapshots):
        """Frees what servers have brought back from their snapshots.

        Called when servers were started again.

        Args:
          shards: Numbers of servers that were started again, a set.
          from_snapshots: Those of them that began with a snapshot.
        """
        if 0 in shards:
            # It has yet to hear of workers that are there.
            self._began = time.monotonic()
        again = {k: d for k, d in self._freed.items() if k[0] in from_snapshots}
        if again:
            traced_calls.trace(lambda: self._build_destroy(again, None))()

    def give_up(self, variables):
        """Takes note of variables that all others have freed."""
        for variable in variables:
            variable.is_over = True
            self._replicas.pop(variable.ordinal, None)
        self._store.variables.forget([v.ordinal for v in variables])
        logging.warning(
            "All other workers have trained and freed the model of %d "
            "variables, beginning with %r, which this worker has built after "
            "a new start: it cannot be trained any more.",
            len(variables),
            variables[0].name,
        )

    def refuse(self, variables):
        """Refuses to go on with variables that all others have freed.

        Raises:
          ModelFreedError: Some of them are.
        """
        over = [v for v in variables if getattr(v, "is_over", False)]
        if over:
            raise ModelFreedError(
                f"{over[0].name!r} is of a model that the other workers have "
                "trained and freed before this worker was started again: its "
                "values are no longer there. Catch tfdist.ModelFreedError and "
                "go on with the next model, or keep a reference to each model "
                "until the end of the script."
            )

    def _let_go_of(self, ordinals):
        """Frees what this worker keeps of variables that are gone."""
        if not ordinals:
            return
        store = self._store
        ordinals = set(ordinals)
        runtime = self._runtime
        for part in (runtime.corrector, runtime.coordination, runtime.local):
            part.let_go(ordinals)
        if not self._runtime.local.keeps_own_values:
            # Steps of others may swap what they hold with their shadows.
            self._empty(ordinals)
        store.variables.forget(ordinals)
        store.forget_traced()
        self._runtime.server_functions.forgot()
        self._let_go |= ordinals

    def _empty(self, ordinals):
        """Empties replicas, which functions may keep that nobody calls.

        TensorFlow keeps each function with a gradient of its own for good,
        with all that it has captured: of `silu`, for example.
        """
        for ordinal in ordinals:
            handle, dtype = self._replicas.pop(ordinal)
            private_tensorflow.empty_variable(handle, dtype)

    # On servers.

    def _free(self):
        for _ in range(_ATTEMPTS):
            rows = self._tell(made=len(self._store.variables))
            free = self._let_go & self._of_nobody(rows)
            if not free:
                return
            if self._destroy(free, rows):
                self._let_go -= free
                return

    def _of_nobody(self, rows):
        """Returns what all live members have let go of, a set of positions."""
        there = [True]
        if self._membership is not None:
            there = [
                self._may_come_back(number, member)
                for number, member in enumerate(
                    self._store.call(self._membership.read)
                )
            ]
        free = set(self._let_go)
        for row, counts in zip(rows, there, strict=True):
            if not counts:
                continue
            if not row:
                return set()
            told = json.loads(row)
            kept = {k for first, end in told["kept"] for k in range(first, end)}
            free = {k for k in free if k < told["made"] and k not in kept}
        return free

    def _may_come_back(self, number, member):
        """Whether a member may use what it has not let go of."""
        if member.state == members_lib.MemberState.FINISHED:
            return False
        if member.state == members_lib.MemberState.UNKNOWN:
            late = time.monotonic() - self._began > self._patience
            is_extra = (
                self._config.initial_workers
                <= number
                < self._config.num_workers
            )
            return not (late or is_extra)
        return member.silent_for < members_lib.LOST_AFTER_SECONDS

    def _tell(self, made):
        """Leaves what this worker has; returns what all have left."""
        kept = [k for k, _ in self._store.variables.items()] if made else []
        row = {"life": self._life, "made": made, "kept": _ranges(kept)}
        text = tf.constant(json.dumps(row))
        if self._leave_row is None:
            self._leave_row = traced_calls.trace(self._build_tell, text)
        texts = self._store.call(self._leave_row, text)
        return [text.decode() for text in texts.numpy()]

    def _handles(self):
        return [
            self._store.resource(0, f"freeing/{row}", tf.string, [])
            for row in range(self._num_rows)
        ]

    def _build_tell(self, text):
        store = self._store
        with tf.device(store.devices[0]):
            text = tf.identity(text)
        with tf.control_dependencies([text.op]):
            lock = store.lock(0, LOCK)
        handles = self._handles()
        with tf.control_dependencies([lock.op]), tf.device(store.devices[0]):
            told = tf.raw_ops.AssignVariableOp(
                resource=handles[self._row], value=text
            )
            with tf.control_dependencies([told]):
                texts = reports.build_texts(handles)
        with tf.control_dependencies([texts.op]):
            unlock = store.unlock(0, lock)
        with tf.control_dependencies([unlock]):
            with tf.device(store.worker_device):
                return tf.identity(texts)

    def _destroy(self, free, rows):
        """Takes variables from the servers, unless something new was told."""
        store = self._store
        named = {
            key: dtype
            for key, dtype in list(store.known.items())
            if owners_of(store.short_name(key[1])) & free
        }
        destroy = traced_calls.trace(lambda: self._build_destroy(named, rows))
        if not store.call(destroy):
            return False
        self._freed.update(named)
        for key in named:
            del store.known[key]
        self._runtime.coordination.were_freed(free)
        return True

    def _build_destroy(self, named, rows):
        """Builds the end of resources, unless `rows` are no longer as told.

        Args:
          named: By server and name, dtypes.
          rows: What members have told; None for whatever they have.

        Returns:
          Whether they have ended, a scalar bool tensor.
        """
        store = self._store
        own = store.lock(0, LOCK)
        # A snapshot has counts of gradients with their ledger, or retired.
        with tf.control_dependencies([own.op]):
            lock = store.lock(0)
        with tf.control_dependencies([lock.op]), tf.device(store.devices[0]):
            same = tf.constant(True)
            if rows is not None:
                now = reports.build_texts(self._handles())
                same = tf.reduce_all(tf.equal(now, tf.constant(rows)))

        def destroy():
            done = self._runtime.coordination.build_retire(
                [store.short_name(name) for _, name in named]
            )
            with tf.control_dependencies(done):
                for (shard, name), dtype in named.items():
                    _build_destroy_one(store.devices[shard], name, dtype)
            return True

        with tf.control_dependencies([lock.op]):
            done = tf.cond(same, destroy, lambda: False)
        with tf.control_dependencies([done]):
            unlock = store.unlock(0, lock)
        with tf.control_dependencies([unlock]):
            store.unlock(0, own)
        with tf.device(store.worker_device):
            return tf.identity(done)


def _build_destroy_one(device, name, dtype):
    with tf.device(device):
        handle = tf.raw_ops.VarHandleOp(
            dtype=dtype, shape=None, shared_name=name
        )
        tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)


def owners_of(name):
    """Positions of the variables that a resource is of, a set.

    Args:
      name: Its name, without the strategy's.
    """
    matches = [pattern.match(name) for pattern in _OWNERS]
    return {int(match.group(1)) for match in matches if match}


def _ranges(numbers):
    """Rising numbers as pairs of a first one and the one after the last."""
    found = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1][1] += 1
        else:
            found.append([number, number + 1])
    return found
