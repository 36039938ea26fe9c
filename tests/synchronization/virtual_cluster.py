"""A cluster without processes: decisions alone, and who waits for them.

`Cluster` has a ledger in this process, so any order of events takes
milliseconds; `virtual_run` adds those that train on it.
"""

import numpy as np
import tensorflow as tf

from tfdist.synchronization import events
from tfdist.synchronization.in_memory import InMemoryLedger
from tfdist.synchronization.state import Phase
from tfdist.synchronization.state import State
from tfdist.synchronization.state import Status

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
SILENT, NEVER = 60, 10**9


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
      ledger: The `InMemoryLedger`.
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
        self.ledger = InMemoryLedger(
            self.method,
            num_workers,
            patience=events.Patience.of_seconds(
                silent=silent, missing=missing, idle=idle
            ),
            initial_workers=initial,
        )

    def _there(self):
        return events.Attendance(self.now, self.heard, self.ended)

    def work_on(self, worker):
        """A worker tells that it has made a step."""
        self.ledger.tick(self._there(), worker, working=True)

    def join(self, worker):
        """A worker tells that it begins to train."""
        self.ledger.tick(self._there(), worker, joining=True)

    def arrive(self, worker, key, pulled, **told):
        """A gradient arrives and is decided over, perhaps."""
        self.ledger.arrive(
            self._there(), worker, key=key, pulled=pulled, **told
        )

    def leave(self, worker):
        """A worker says that it sends no more gradients."""
        self.ledger.tick(self._there(), worker, leaving=True)

    def excuse(self, worker):
        """A worker that has to leave need not wait."""
        self.ledger.tick(self._there(), worker, preempted=True)

    def tick(self):
        """Somebody's heartbeat."""
        self.ledger.tick(self._there())

    def go_on(self, worker):
        """A worker learns what has been decided."""
        self.ledger.go_on([worker], self.now)

    def read(self):
        """The `State`, of NumPy values."""
        return self.ledger.state

    def tensors(self):
        """The `State`, of tensors."""
        state = vars(self.read())
        return State(**{name: tf.constant(x) for name, x in state.items()})

    def set(self, state):
        """Makes it another `State`, of tensors."""
        self.ledger.restore(tf.concat([state.pack(), state.phase], 0).numpy())

    # Short for tests of single cases.

    def step(self, worker, pulled=None, **told):
        """A gradient of the current version arrives; whether decided."""
        state = self.read()
        pulled = state.version if pulled is None else pulled
        self.arrive(worker, state.arrivals + 1, pulled, **told)
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
        return [Phase(p) for p in self.ledger.phases]

    def decided(self):
        """Who may go on and has not yet, a set of numbers."""
        done = (Phase.GRANTED, Phase.DROPPED)
        return {k for k, p in enumerate(self.phases()) if p in done}

    def waiting(self):
        """Whose last gradient holds it up, a set of numbers."""
        kept = (Phase.ARRIVED, Phase.ACCEPTED)
        return {k for k, p in enumerate(self.phases()) if p in kept}
