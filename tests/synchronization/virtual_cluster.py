"""A cluster without processes: decisions alone, and who waits for them.

`Cluster` holds the packed `State` and changes it as the ledger does: an event,
then who is there, then the method's decisions. So any order of events takes
milliseconds; `virtual_run` adds those that train on it.
"""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from tfdist.synchronization import events
from tfdist.synchronization import state as state_lib
from tfdist.synchronization.decisions import Decisions
from tfdist.synchronization.state import Phase
from tfdist.synchronization.state import Status

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
SILENT, NEVER = 60, 10**9


@functools.cache
def _layout(num_workers):
    """Where each field of `State` is in the packed vector."""
    size = state_lib.size(num_workers)
    places = state_lib.State.unpack(tf.range(size), num_workers)
    return {
        field.name: getattr(places, field.name).numpy()
        for field in dataclasses.fields(places)
    }


def read(vector, num_workers):
    """The `State` in a packed vector, of NumPy values."""
    vector = np.asarray(vector)
    layout = _layout(num_workers)
    return state_lib.State(**{k: vector[v] for k, v in layout.items()})


class _Transactions:
    """The events of one method and number of workers, compiled."""

    def __init__(self, method, num_workers):
        self._method = method
        self._num_workers = num_workers
        number = tf.TensorSpec([], tf.int64)
        vector = tf.TensorSpec([state_lib.size(num_workers)], tf.int64)
        time = tf.TensorSpec([num_workers], tf.int64)
        ended = tf.TensorSpec([num_workers], tf.bool)
        patience = tf.TensorSpec([3], tf.int64)
        there = [number, time, ended, patience]
        self.tick = self._function(self._tick, [vector, *there])
        self.leave = self._function(self._leave, [vector, number, *there])
        self.arrive, self.arrive_last = (
            self._function(
                functools.partial(self._arrive, last),
                [vector, number, number, number, *there],
            )
            for last in (False, True)
        )
        self.go_on = self._function(self._go_on, [vector, number, number])
        self.excuse = self._function(self._excuse, [vector, number, *there])
        self.work_on, self.join = (
            self._function(
                functools.partial(self._tell, event), [vector, number, *there]
            )
            for event in (events.work_on, events.join)
        )

    def _function(self, body, signature):
        return tf.function(body, input_signature=signature, autograph=False)

    def _unpack(self, vector):
        return state_lib.State.unpack(vector, self._num_workers)

    def _decisions(self, patience):
        return Decisions(self._method, events.Patience(*tf.unstack(patience)))

    def _tick(self, vector, now, heard, ended, patience):
        attendance = events.Attendance(now, heard, ended)
        state = self._unpack(vector)
        return self._decisions(patience).decide(state, attendance).pack()

    def _leave(self, vector, worker, now, heard, ended, patience):
        attendance = events.Attendance(now, heard, ended)
        state = events.leave(self._unpack(vector), worker)
        return self._decisions(patience).decide(state, attendance).pack()

    def _arrive(
        self, last, vector, worker, key, pulled, now, heard, ended, patience
    ):
        state = self._decisions(patience).arrive(
            self._unpack(vector),
            worker,
            key=key,
            pulled=pulled,
            attendance=events.Attendance(now, heard, ended),
            last=last,
        )
        return state.pack()

    def _tell(self, event, vector, worker, now, heard, ended, patience):
        attendance = events.Attendance(now, heard, ended)
        state = event(self._unpack(vector), worker, now)
        return self._decisions(patience).decide(state, attendance).pack()

    def _excuse(self, vector, worker, now, heard, ended, patience):
        attendance = events.Attendance(now, heard, ended)
        state = events.excuse(self._unpack(vector), worker)
        return self._decisions(patience).decide(state, attendance).pack()

    def _go_on(self, vector, worker, now):
        return events.go_on(self._unpack(vector), worker, now).pack()


_compiled = {}


def _transactions(method, num_workers):
    key = (repr(method), num_workers)
    if key not in _compiled:
        _compiled[key] = _Transactions(method, num_workers)
    return _compiled[key]


class Cluster:
    """The state of a cluster and what changes it.

    Args:
      method: A `Synchronization`.
      num_workers: Number of workers.
      silent: Patience with the silent, seconds; `missing` and `idle` alike.
      missing: Seconds.
      idle: Seconds.

    Attributes:
      now: Microseconds; as `heard` and `ended` to be set from outside.
      heard: When each worker was last heard of, int64 vector.
      ended: Whose process has ended, bool vector.
    """

    def __init__(
        self,
        method,
        num_workers,
        *,
        silent=SILENT,
        missing=NEVER,
        idle=NEVER,
        initial=None,
    ):
        self.method = method.resolve(num_workers)
        self.num_workers = num_workers
        self.now = START
        self.heard = np.full(num_workers, START)
        self.ended = np.zeros(num_workers, bool)
        self._patience = np.array([silent, missing, idle]) * SECOND
        zeros = tf.zeros([state_lib.size(num_workers)], tf.int64)
        state = state_lib.State.unpack(zeros, num_workers)
        self._vector = events.absent(state, initial or num_workers).pack()
        self._transactions = _transactions(self.method, num_workers)

    def _there(self):
        return self.now, self.heard, self.ended, self._patience

    def work_on(self, worker):
        """A worker tells that it has made a step."""
        self._vector = self._transactions.work_on(
            self._vector, worker, *self._there()
        )

    def join(self, worker):
        """A worker tells that it begins to train."""
        self._vector = self._transactions.join(
            self._vector, worker, *self._there()
        )

    def arrive(self, worker, key, pulled, last=False):
        """A gradient arrives and is decided over, perhaps."""
        transactions = self._transactions
        arrive = transactions.arrive_last if last else transactions.arrive
        self._vector = arrive(self._vector, worker, key, pulled, *self._there())

    def leave(self, worker):
        """A worker says that it sends no more gradients."""
        self._vector = self._transactions.leave(
            self._vector, worker, *self._there()
        )

    def excuse(self, worker):
        """A worker that has to leave need not wait."""
        self._vector = self._transactions.excuse(
            self._vector, worker, *self._there()
        )

    def tick(self):
        """Somebody's heartbeat."""
        self._vector = self._transactions.tick(self._vector, *self._there())

    def go_on(self, worker):
        """A worker learns what has been decided."""
        self._vector = self._transactions.go_on(self._vector, worker, self.now)

    def read(self):
        """The `State`, of NumPy values."""
        return read(self._vector, self.num_workers)

    # Short for tests of single cases.

    def step(self, worker, pulled=None, last=False):
        """A gradient of the current version arrives; whether decided."""
        state = self.read()
        pulled = state.version if pulled is None else pulled
        self.arrive(worker, state.arrivals + 1, pulled, last)
        return self.proceed(worker)

    def proceed(self, worker):
        """Lets a worker go on if it may; whether it may."""
        decided = worker in self.decided()
        if decided:
            self.go_on(worker)
        return decided

    def statuses(self):
        """The `Status` of each worker, a list."""
        return [Status(s) for s in self.read().status]

    def phases(self):
        """The `Phase` of each worker, a list."""
        return [Phase(p) for p in self.read().phase]

    def decided(self):
        """Who may go on and has not yet, a set of numbers."""
        done = (Phase.GRANTED, Phase.DROPPED)
        return {k for k, p in enumerate(self.phases()) if p in done}

    def waiting(self):
        """Whose last gradient holds it up, a set of numbers."""
        kept = (Phase.ARRIVED, Phase.ACCEPTED)
        return {k for k, p in enumerate(self.phases()) if p in kept}
