"""A ledger in this process, for virtual clusters: NumPy values in and out."""

import functools

import numpy as np
import tensorflow as tf

from tfdist.synchronization import events
from tfdist.synchronization import state as state_lib
from tfdist.synchronization.state import Phase
from tfdist.synchronization.state import Status
from tfdist.synchronization.state_machine import Decisions

_HELD_UP = (Phase.ARRIVED, Phase.ACCEPTED)


class InMemoryLedger:
    """The `State` of a virtual cluster, and the events that change it.

    The decisions are those of real servers, each event traced when it first
    happens. Times are microseconds, from 1 on: 0 stands for never.

    Args:
      method: A `Synchronization`, resolved.
      num_workers: Number of workers.
      patience: A `Patience`.
      forgets: As for `Decisions`.
      initial_workers: How many of the workers, the first, are waited for at
        first; None for all.

    Attributes:
      state: The `State`, of NumPy integers and vectors; not to be changed.
      phases: The `Phase` of each worker when the last event was decided over,
        before anybody went on; an int64 vector.
    """

    def __init__(
        self,
        method,
        num_workers,
        *,
        patience,
        forgets=False,
        initial_workers=None,
    ):
        self._num_workers = num_workers
        self._waits = method.waits
        self._patience = patience
        self._events = _events(method, num_workers, patience, forgets)
        vector = np.zeros(state_lib.size(num_workers), np.int64)
        if initial_workers is not None:
            state = state_lib.State.unpack(tf.constant(vector), num_workers)
            vector = events.absent(state, initial_workers).pack().numpy()
        self.restore(np.append(vector, np.zeros(num_workers, np.int64)))

    # Events.

    def arrive(self, attendance, worker, *, key, pulled, **told):
        """A gradient arrives.

        Where nobody waits, its worker goes on at once, as on real servers.

        Args:
          attendance: An `Attendance` of integers and vectors.
          worker: Number of the worker.
          key: Number that no other gradient has.
          pulled: Version that it was computed from.
          **told: `last` and `finite`, bools, as for `Decisions.arrive`.
        """
        self._run("arrive", attendance, (worker, key, pulled), **told)

    def tick(self, attendance, worker=0, **told):
        """A heartbeat.

        Args:
          attendance: As for `arrive`.
          worker: Number of a worker that has something to tell.
          **told: What, bools, as for `Decisions.tick`.
        """
        self._run("tick", attendance, (worker, 0, 0), **told)

    def go_on(self, workers, now):
        """Workers have been told what became of their gradients.

        Args:
          workers: Their numbers, a list.
          now: Microseconds.
        """
        if not self._waits:
            self.phases = self.state.phase  # They had gone on already.
            return
        mask = np.zeros(self._num_workers, np.int64)
        mask[workers] = 1
        self._set(self._events.run("go_on", self._vector, ((now,), mask)))

    def next_deadline(self, attendance, alive):
        """When somebody will have been waited for long enough.

        What `events.attend` would find, if nothing happened until then.

        Args:
          attendance: As for `arrive`.
          alive: Who will go on to be heard of, a list of bools.

        Returns:
          Microseconds, later than now; None if nobody is waited for in vain.
        """
        state, patience = self.state, self._patience
        found = []
        for worker in range(self._num_workers):
            if state.status[worker] == Status.GONE:
                continue
            last, since = attendance.heard[worker], state.since[worker]
            if last and not alive[worker]:
                found.append(max(last, since) + patience.silent)
            if state.status[worker] == Status.EXPECTED:
                if state.started_at:
                    found.append(state.started_at + patience.missing)
            elif state.phase[worker] not in _HELD_UP:
                found.append(since + patience.idle)
        # It takes more than that long.
        later = [int(time) + 1 for time in found if time + 1 > attendance.now]
        return min(later, default=None)

    def save(self):
        """All there is, for `restore`."""
        return np.append(self._vector, self.phases)

    def restore(self, saved):
        """Makes it what it was at a call of `save`."""
        self._set(saved)

    def _run(self, name, attendance, numbers, **told):
        entered = attendance.entered
        if entered is None:
            entered = np.zeros(self._num_workers, np.int64)
        # In one vector, as each argument of a call takes its time.
        parts = (
            (*numbers, attendance.now),
            attendance.heard,
            attendance.ended,
            entered,
        )
        self._set(self._events.run(name, self._vector, parts, **told))

    def _set(self, values):
        self._vector, self.phases = np.split(values, [-self._num_workers])
        self.state = state_lib.State.unpack_array(
            self._vector, self._num_workers
        )


class _Events:
    """The events of a method and a number of workers, as functions of vectors.

    Each returns the new `State`, packed, and the phases before anybody went
    on, in one vector.
    """

    def __init__(self, decisions, num_workers):
        self._decisions = decisions
        self._num_workers = num_workers
        self._traced = {}

    def run(self, name, vector, parts, **told):
        """Runs the event of that name.

        Args:
          name: Of a method of this class.
          vector: The packed `State`.
          parts: What happens to whom and when, a sequence of vectors.
          **told: The same where a trace differs by it.
        """
        numbers = np.concatenate(parts, dtype=np.int64)
        key = name, *told.items()
        if key not in self._traced:
            event = functools.partial(getattr(self, name), **told)
            self._traced[key] = tf.function(
                event, autograph=False
            ).get_concrete_function(
                *(tf.TensorSpec(x.shape, tf.int64) for x in (vector, numbers))
            )
        function = self._traced[key]
        return function(tf.constant(vector), tf.constant(numbers)).numpy()

    def arrive(self, vector, numbers, **told):
        """A gradient arrives."""
        (worker, key, pulled), attendance = self._unpack_event(numbers)
        state = self._decisions.arrive(
            self._unpack(vector),
            worker,
            key=key,
            pulled=pulled,
            attendance=attendance,
            **told,
        )
        phase = state.phase
        if not self._decisions.method.waits:
            state = events.go_on(state, worker, attendance.now)
        return tf.concat([state.pack(), phase], 0)

    def tick(self, vector, numbers, **told):
        """A heartbeat, and what it tells."""
        (worker, _, _), attendance = self._unpack_event(numbers)
        state = self._decisions.tick(
            self._unpack(vector), attendance, worker, **told
        )
        return tf.concat([state.pack(), state.phase], 0)

    def go_on(self, vector, numbers):
        """Workers go on."""
        state = events.all_go_on(
            self._unpack(vector), numbers[1:] > 0, numbers[0]
        )
        return tf.concat([state.pack(), state.phase], 0)

    def _unpack(self, vector):
        return state_lib.State.unpack(vector, self._num_workers)

    def _unpack_event(self, numbers):
        """Returns an event, three numbers, and an `Attendance`."""
        numbers, heard, ended, entered = tf.split(
            numbers, [4, *3 * [self._num_workers]]
        )
        *numbers, now = tf.unstack(numbers)
        return numbers, events.Attendance(now, heard, ended > 0, entered)


# As many as are compared at a time.
@functools.lru_cache(64)
def _kept_events(method, num_workers, patience, forgets):
    return _Events(Decisions(method, patience, forgets), num_workers)


def _events(method, *settings):
    """The `_Events` of a method; those of tfdist's own are kept."""
    if type(method).__module__.startswith("tfdist."):
        return _kept_events(method, *settings)
    return _kept_events.__wrapped__(method, *settings)
