"""The decisions of a virtual cluster: those of real servers, compiled."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from tfdist.synchronization import events
from tfdist.synchronization import state as state_lib
from tfdist.synchronization.decisions import Decisions
from tfdist.synchronization.state import Phase
from tfdist.synchronization.state import Status

_HELD_UP = (Phase.ARRIVED, Phase.ACCEPTED)
# Zero stands for "never" in a `State`: virtual time begins later.
_START_MICROSECONDS = 1_000_000


def _microseconds(seconds):
    if seconds is None:
        return 0
    return _START_MICROSECONDS + int(round(seconds * 1e6))


def _seconds(microseconds):
    return (microseconds - _START_MICROSECONDS) * 1e-6


@functools.cache
def _layout(num_workers):
    """Where each field of `State` is in the packed vector."""
    size = state_lib.size(num_workers)
    places = state_lib.State.unpack(tf.range(size), num_workers)
    slices = {}
    for field in dataclasses.fields(places):
        found = getattr(places, field.name).numpy()
        if found.ndim:
            slices[field.name] = slice(found[0], found[-1] + 1)
        else:
            slices[field.name] = int(found)
    return slices


class VirtualLedger:
    """The `State` of a virtual cluster, and the events that change it.

    Args:
      method: A `Synchronization`, resolved.
      num_workers: Number of workers.
      patience: A `Patience`.
      forgets: Whether workers that are gone are forgotten by the servers.

    Attributes:
      state: The `State`, of NumPy integers and vectors; not to be changed.
      phases: The `Phase` of each worker when the last event was decided over,
        before anybody went on; an int64 vector.
    """

    def __init__(self, method, num_workers, *, patience, forgets):
        self._num_workers = num_workers
        self._waits = method.waits
        self._patience = patience
        self._events = _events(method, num_workers, patience, forgets)
        size = state_lib.size(num_workers) + num_workers
        self._set(np.zeros(size, np.int64))

    # Events.

    def arrive(self, worker, *, key, pulled, now, heard, entered):
        """A gradient arrives.

        Args:
          worker: Number of the worker.
          key: Number that no other gradient has.
          pulled: Version that it was computed from.
          now: Seconds.
          heard: When each worker was last heard of, a list of seconds; None
            for never.
          entered: When its process began, a list of seconds.
        """
        self._call("arrive", (worker, key, pulled), now, heard, entered)

    def tick(self, *, now, heard, entered):
        """A heartbeat of somebody."""
        self._call("tick", (0, 0, 0), now, heard, entered)

    def work_on(self, worker, *, now, heard, entered):
        """A worker has made a step that nobody has been told of."""
        self._call("work_on", (worker, 0, 0), now, heard, entered)

    def leave(self, worker, *, now, heard, entered):
        """A worker sends no more gradients."""
        self._call("leave", (worker, 0, 0), now, heard, entered)

    def go_on(self, workers, now):
        """Workers have been told what became of their gradients."""
        if not self._waits:
            return  # They have gone on as they arrived.
        mask = np.zeros(self._num_workers, np.int64)
        mask[list(workers)] = 1
        nothing = np.zeros(self._num_workers, np.int64)
        self._run("go_on", (0, 0, 0, _microseconds(now)), mask, nothing)

    def next_deadline(self, *, now, heard, alive):
        """When somebody will have been waited for long enough.

        Args:
          now: Seconds.
          heard: As for `arrive`.
          alive: Who will go on to be heard of, a list of bools.

        Returns:
          Seconds, later than `now`; None if nobody is waited for in vain.
        """
        state, patience = self.state, self._patience
        present = _microseconds(now)
        found = []
        for worker in range(self._num_workers):
            if state.status[worker] == Status.GONE:
                continue
            last = _microseconds(heard[worker])
            since = state.since[worker]
            if last and not alive[worker]:
                found.append(max(last, since) + patience.silent)
            if state.status[worker] == Status.EXPECTED:
                if state.started_at:
                    found.append(state.started_at + patience.missing)
            elif state.phase[worker] not in _HELD_UP:
                found.append(since + patience.idle)
        # It takes more than that long.
        later = [int(time) + 1 for time in found if time + 1 > present]
        return _seconds(min(later)) if later else None

    def save(self):
        """All there is, for `restore`."""
        return np.concatenate([self._vector, self.phases])

    def restore(self, saved):
        """Makes it what it was at a call of `save`."""
        self._set(saved)

    def _call(self, name, event, now, heard, entered):
        event = (*event, _microseconds(now))
        heard = [_microseconds(time) for time in heard]
        entered = [_microseconds(time) for time in entered]
        self._run(name, event, heard, entered)

    def _run(self, name, *parts):
        event = tf.constant(np.concatenate(parts), tf.int64)
        function = self._events.compiled(name)
        self._set(function(tf.constant(self._vector), event).numpy())

    def _set(self, values):
        vector, self.phases = np.split(values, [-self._num_workers])
        self._vector = vector
        layout = _layout(self._num_workers)
        self.state = state_lib.State(
            **{name: vector[place] for name, place in layout.items()}
        )


class _Events:
    """What the events do, compiled when each first happens."""

    def __init__(self, decisions, num_workers):
        self._decisions = decisions
        self._num_workers = num_workers
        self._compiled = {}

    def compiled(self, name):
        """A function of the packed `State` and the vector of an event.

        It returns the new `State`, packed, and the phases before anybody went
        on, in one vector.
        """
        if name not in self._compiled:
            function = tf.function(getattr(self, name), autograph=False)
            # What happens to whom and when, and two times of each worker: in
            # one vector, as each argument of a call takes its time.
            self._compiled[name] = function.get_concrete_function(
                tf.TensorSpec([state_lib.size(self._num_workers)], tf.int64),
                tf.TensorSpec([4 + 2 * self._num_workers], tf.int64),
            )
        return self._compiled[name]

    def _unpack(self, vector):
        return state_lib.State.unpack(vector, self._num_workers)

    def _attendance(self, event):
        _, heard, entered = tf.split(
            event, [4, self._num_workers, self._num_workers]
        )
        # Who is killed does not say so: it is silent.
        ended = tf.zeros([self._num_workers], tf.bool)
        return events.Attendance(event[3], heard, ended, entered)

    def arrive(self, vector, event):
        attendance = self._attendance(event)
        state = self._decisions.arrive(
            self._unpack(vector),
            event[0],
            key=event[1],
            pulled=event[2],
            attendance=attendance,
        )
        if not self._decisions.method.waits:
            going = events.go_on(state, event[0], attendance.now)
            return tf.concat([going.pack(), state.phase], 0)
        return _with_phases(state)

    def tick(self, vector, event):
        state = self._unpack(vector)
        attendance = self._attendance(event)
        return _with_phases(self._decisions.decide(state, attendance))

    def work_on(self, vector, event):
        attendance = self._attendance(event)
        state = events.work_on(self._unpack(vector), event[0], attendance.now)
        return _with_phases(self._decisions.decide(state, attendance))

    def leave(self, vector, event):
        attendance = self._attendance(event)
        state = events.leave(self._unpack(vector), event[0])
        return _with_phases(self._decisions.decide(state, attendance))

    def go_on(self, vector, event):
        going = event[4 : 4 + self._num_workers] > 0
        return _with_phases(
            events.all_go_on(self._unpack(vector), going, event[3])
        )


def _with_phases(state):
    return tf.concat([state.pack(), state.phase], 0)


def _events(method, num_workers, patience, forgets):
    """The `_Events` of a method; those of tfdist's own are kept."""
    decisions = Decisions(method, patience, forgets)
    if not type(method).__module__.startswith("tfdist."):
        return _Events(decisions, num_workers)
    # What they are is all in their text.
    key = (repr(method), num_workers, patience, forgets)
    if key not in _kept:
        if len(_kept) >= _MOST_KEPT:
            _kept.pop(next(iter(_kept)))
        _kept[key] = _Events(decisions, num_workers)
    return _kept[key]


_kept = {}
# As many as are compared at a time.
_MOST_KEPT = 64
