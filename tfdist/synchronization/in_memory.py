"""A ledger in this process, for virtual clusters: NumPy values in and out."""

import numpy as np
import tensorflow as tf

from tfdist.synchronization import events
from tfdist.synchronization import state as state_lib
from tfdist.synchronization import traced_events
from tfdist.synchronization.state import Phase
from tfdist.synchronization.state import Status
from tfdist.synchronization.state_machine import Decisions

_HELD_UP = (Phase.ARRIVED, Phase.ACCEPTED)


class InMemoryLedger:
    """The `State` of a virtual cluster, and the events that change it.

    The decisions are those of real servers. Times are microseconds, from 1 on:
    0 stands for never.

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
        self._events = _events(
            Decisions(method, patience, forgets), num_workers
        )
        vector = np.zeros(state_lib.size(num_workers), np.int64)
        if initial_workers is not None:
            state = state_lib.State.unpack(tf.constant(vector), num_workers)
            vector = events.absent(state, initial_workers).pack().numpy()
        self.restore(np.append(vector, np.zeros(num_workers, np.int64)))

    # Events.

    def arrive(
        self,
        attendance,
        worker,
        *,
        key,
        pulled,
        last=False,
        finite=True,
    ):
        """A gradient arrives.

        Where nobody waits, its worker goes on at once, as on real servers.

        Args:
          attendance: An `Attendance` of integers and vectors.
          worker: Number of the worker.
          key: Number that no other gradient has.
          pulled: Version that it was computed from.
          last: bool, whether the worker trains no more.
          finite: bool, whether the gradient may count.
        """
        self._run(
            "arrive", attendance, (worker, key, pulled, finite), last=last
        )

    def tick(self, attendance, worker=0, **told):
        """A heartbeat.

        Args:
          attendance: As for `arrive`.
          worker: Number of a worker that has something to tell.
          **told: What, bools, as for `Decisions.tick`.
        """
        self._run("tick", attendance, (worker, 0, 0, True), **told)

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
        now = np.int64(now)
        self._set(self._call("go_on", self._vector, now, mask))

    def next_deadline(self, attendance, alive):
        """Moment at which somebody will have been waited for long enough.

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
        nothing = np.zeros(self._num_workers, np.int64)
        entered = attendance.entered
        # In one vector, as each argument of a call takes its time.
        event = np.concatenate(
            (
                (*numbers, True, attendance.now),
                attendance.heard,
                attendance.ended,
                nothing if entered is None else entered,
                nothing,
            ),
            dtype=np.int64,
        )
        self._set(self._call(name, self._vector, event, **told))

    def _call(self, name, *arrays, **told):
        vectors = [tf.constant(array) for array in arrays]
        return self._events.call(name, *vectors, **told).numpy()

    def _set(self, values):
        self._vector, self.phases = np.split(values, [-self._num_workers])
        self.state = state_lib.State.unpack_array(
            self._vector, self._num_workers
        )


class _Events(traced_events.TracedEvents):
    """Those of a virtual cluster.

    Each returns the new `State`, packed, and the phases before anybody went
    on, in one vector.
    """

    def arrive(self, vector, event, *, last=False):
        """A gradient arrives; its worker goes on if nobody waits."""
        numbers, attendance = self._unpack_event(event)
        state = self._arrived(self._unpack(vector), numbers, attendance, last)
        phase = state.phase
        if not self._decisions.method.waits:
            state = events.go_on(state, numbers.worker, attendance.now)
        return tf.concat([state.pack(), phase], 0)

    def tick(self, vector, event, **told):
        """A heartbeat, and what it tells."""
        numbers, attendance = self._unpack_event(event)
        state = self._decisions.tick(
            self._unpack(vector), attendance, numbers.worker, **told
        )
        return tf.concat([state.pack(), state.phase], 0)

    def go_on(self, vector, now, mask):
        """Workers go on."""
        state = events.all_go_on(self._unpack(vector), mask > 0, now)
        return tf.concat([state.pack(), state.phase], 0)


_events = traced_events.kept(_Events)
