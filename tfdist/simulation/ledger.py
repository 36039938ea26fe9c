"""The decisions of a virtual cluster: those of real servers, compiled."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from tfdist.synchronization import events
from tfdist.synchronization import state as state_lib
from tfdist.synchronization.decisions import Decisions

# Zero stands for "never" in a `State`: virtual time begins later.
_START_MICROSECONDS = 1_000_000


def _microseconds(seconds):
    return _START_MICROSECONDS + int(round(seconds * 1e6))


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
        self._decisions = Decisions(method, patience, forgets)
        self._waits = method.waits
        vector = tf.TensorSpec([state_lib.size(num_workers)], tf.int64)
        # What happens to whom and when, and two times of each worker: in one
        # vector, as each argument of a call takes its time.
        event = tf.TensorSpec([4 + 2 * num_workers], tf.int64)

        def compiled(body):
            function = tf.function(body, autograph=False)
            return function.get_concrete_function(vector, event)

        self._arrive = compiled(self._build_arrive)
        self._tick = compiled(self._build_tick)
        self._leave = compiled(self._build_leave)
        self._go_on = compiled(self._build_go_on)
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
          heard: When each worker was last heard of, a list of seconds.
          entered: When its process began, a list of seconds.
        """
        self._call(self._arrive, (worker, key, pulled), now, heard, entered)

    def tick(self, *, now, heard, entered):
        """A heartbeat of somebody."""
        self._call(self._tick, (0, 0, 0), now, heard, entered)

    def leave(self, worker, *, now, heard, entered):
        """A worker sends no more gradients."""
        self._call(self._leave, (worker, 0, 0), now, heard, entered)

    def go_on(self, workers, now):
        """Workers have been told what became of their gradients."""
        if not self._waits:
            return  # They have gone on as they arrived.
        mask = np.zeros(self._num_workers, np.int64)
        mask[list(workers)] = 1
        nothing = np.zeros(self._num_workers, np.int64)
        self._run(self._go_on, (0, 0, 0, _microseconds(now)), mask, nothing)

    def _call(self, function, event, now, heard, entered):
        event = (*event, _microseconds(now))
        heard = [_microseconds(time) for time in heard]
        entered = [_microseconds(time) for time in entered]
        self._run(function, event, heard, entered)

    def _run(self, function, *parts):
        event = tf.constant(np.concatenate(parts), tf.int64)
        self._set(function(tf.constant(self._vector), event).numpy())

    def _set(self, values):
        vector, self.phases = np.split(values, [-self._num_workers])
        self._vector = vector
        layout = _layout(self._num_workers)
        self.state = state_lib.State(
            **{name: vector[place] for name, place in layout.items()}
        )

    # Compiled.

    def _unpack(self, vector):
        return state_lib.State.unpack(vector, self._num_workers)

    def _attendance(self, event):
        _, heard, entered = tf.split(
            event, [4, self._num_workers, self._num_workers]
        )
        # Who is killed does not say so: it is silent.
        ended = tf.zeros([self._num_workers], tf.bool)
        return events.Attendance(event[3], heard, ended, entered)

    def _build_arrive(self, vector, event):
        attendance = self._attendance(event)
        state = self._decisions.arrive(
            self._unpack(vector),
            event[0],
            key=event[1],
            pulled=event[2],
            attendance=attendance,
        )
        if not self._waits:
            going = events.go_on(state, event[0], attendance.now)
            return tf.concat([going.pack(), state.phase], 0)
        return _with_phases(state)

    def _build_tick(self, vector, event):
        state = self._unpack(vector)
        attendance = self._attendance(event)
        return _with_phases(self._decisions.decide(state, attendance))

    def _build_leave(self, vector, event):
        attendance = self._attendance(event)
        state = events.leave(self._unpack(vector), event[0])
        return _with_phases(self._decisions.decide(state, attendance))

    def _build_go_on(self, vector, event):
        going = event[4 : 4 + self._num_workers] > 0
        return _with_phases(
            events.all_go_on(self._unpack(vector), going, event[3])
        )


def _with_phases(state):
    return tf.concat([state.pack(), state.phase], 0)
