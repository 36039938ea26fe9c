"""What happens when: a virtual cluster in virtual time.

When gradients are ready, arrive and are decided over depends on no gradient.
So the whole course of a training is known without computing one: `Schedule`
plays it, and gives a list of what servers and workers do, in order, for
`training.Training` to compute, or for nobody where time alone is asked for.
"""

import collections
import dataclasses
import heapq
import itertools

import numpy as np

from tfdist.runtime.coordination.coordination import IDLE_SECONDS
from tfdist.simulation.actions import Begin
from tfdist.simulation.actions import Drop
from tfdist.simulation.actions import Job
from tfdist.simulation.actions import read_log
from tfdist.simulation.ledger import VirtualLedger
from tfdist.simulation.network import Links
from tfdist.synchronization.events import Patience
from tfdist.synchronization.state import Phase

_DECIDED = (Phase.GRANTED, Phase.DROPPED)


@dataclasses.dataclass(frozen=True)
class Failure:
    """A worker dies, and may come back.

    Attributes:
      worker: Its number.
      at: Seconds; at 0 it joins late.
      until: Seconds at which another process takes its place, with what is
        left of its share of the data; None: never.
    """

    worker: int
    at: float
    until: float | None = None

    def __post_init__(self):
        if self.until is not None and not self.until > self.at:
            raise ValueError(
                f"Failure: until must be later than at={self.at}. "
                f"Received: {self.until!r}."
            )
        if not self.at >= 0:
            raise ValueError(
                f"Failure: at must be at least 0. Received: {self.at!r}."
            )


def _check_apart(failures):
    """Refuses failures of a worker that is dead."""
    ordered = sorted(failures, key=lambda f: (f.worker, f.at))
    for one, other in itertools.pairwise(ordered):
        if one.worker == other.worker and not (one.until or np.inf) < other.at:
            raise ValueError(
                "failures: a worker must be back before it dies again. "
                f"Received: {one} and {other}."
            )


class Shares:
    """Which batches each worker computes.

    Args:
      num_batches: Of one epoch.
      epochs: Number of epochs.
      num_workers: Number of workers.
      dynamic: False: a worker has every `num_workers`-th batch of an epoch,
        as `fit` on a cluster has it, and stops when these are done. True:
        each takes the next one that nobody has taken.
    """

    def __init__(self, num_batches, epochs, num_workers, dynamic=False):
        def share(worker):
            for epoch in range(epochs):
                first, end = epoch * num_batches, (epoch + 1) * num_batches
                yield from range(first + worker, end, num_workers)

        if dynamic:
            self._own = [iter(range(num_batches * epochs))] * num_workers
        else:
            self._own = [share(worker) for worker in range(num_workers)]

    def next(self, worker):
        """The next batch of a worker, None if there is none."""
        return next(self._own[worker], None)


class Schedule:
    """A virtual cluster.

    Args:
      method: A `Method`, resolved.
      num_workers: Number of workers.
      shares: A `Shares`.
      compute: A `ComputeTime`.
      network: A `Network`.
      push_bytes: What a push brings to each server, a list of ints.
      pull_bytes: What a pull brings from each server, a list of ints.
      fetch_bytes: What a fetch between two pushes brings from each server.
      failures: `Failure`s.
      seed: Of compute times.
      worker_timeout: Seconds after which nobody waits for a silent worker.
      start_timeout: The same for one that has never arrived.
      max_seconds: Virtual time after which no gradient is begun, or None.

    Attributes:
      jobs: All `Job`s so far, a list.
      now: Seconds, when a gradient was last begun or decided over.
    """

    def __init__(
        self,
        method,
        num_workers,
        shares,
        *,
        compute,
        network,
        push_bytes,
        pull_bytes,
        fetch_bytes=None,
        failures=(),
        seed=0,
        worker_timeout=10.0,
        start_timeout=300.0,
        max_seconds=None,
    ):
        self._method = method
        self._num_workers = num_workers
        self._shares = shares
        self._compute = compute
        self._links = Links(
            network, num_workers, push_bytes, pull_bytes, fetch_bytes
        )
        self._ledger = VirtualLedger(
            method.synchronization,
            num_workers,
            patience=Patience.of_seconds(
                silent=worker_timeout,
                missing=start_timeout,
                idle=IDLE_SECONDS,
            ),
            forgets=method.remembers_workers,
        )
        self._streams = [
            np.random.default_rng([seed, worker])
            for worker in range(num_workers)
        ]
        self._max_seconds = max_seconds
        self.jobs = []
        # The clock; `now` is when something last came of it.
        self.now = self._now = 0.0
        # Each worker: the job that it is at, the life that it is in.
        self._current = [None] * num_workers
        self._lives = [0] * num_workers
        self._alive = [True] * num_workers
        self._steps = [0] * num_workers
        self._finished = [False] * num_workers
        # Batches to be computed again, or left by a process that was killed.
        self._again = [collections.deque() for _ in range(num_workers)]
        # The gradient that such a process was waiting for a decision over.
        self._left = [None] * num_workers
        # None: never.
        self._last_heard = [None] * num_workers
        self._entered = [0.0] * num_workers
        self._executed = 0
        # When heartbeats will next decide again, None if nobody waits.
        self._beat_at = None
        self._queue = []
        self._number = itertools.count()
        self._out = []
        for failure in failures:
            self._fail(failure)
        _check_apart(failures)

    def _fail(self, failure):
        if not 0 <= failure.worker < self._num_workers:
            raise ValueError(
                f"Failure: worker must be from 0 to {self._num_workers - 1}. "
                f"Received: {failure.worker!r}."
            )
        self._at(failure.at, self._die, failure.worker)
        if failure.until is not None:
            self._at(failure.until, self._return, failure.worker)

    def run(self):
        """Plays the whole training.

        Yields:
          `Begin`, `Entry` and `Drop`, in the order in which they happen.

        Raises:
          RuntimeError: The method lets workers wait for ever.
        """
        for worker in range(self._num_workers):
            self._at(0.0, self._begin, worker, 0)
        while self._queue:
            self._now, _, event, arguments = heapq.heappop(self._queue)
            event(*arguments)
            if self._out:
                self.now = self._now
            yield from self._out
            self._out.clear()
        stuck = [w for w in range(self._num_workers) if self._is_waiting(w)]
        if stuck:
            raise RuntimeError(
                f"{self._method.synchronization!r} lets workers {stuck} wait "
                f"at {self._now:g} s, and nobody is left whose gradient could "
                "arrive."
            )

    def _at(self, time, event, *arguments):
        heapq.heappush(
            self._queue, (time, next(self._number), event, arguments)
        )

    # What happens to a worker.

    def _begin(self, worker, life, anew=False):
        """It is given parameters for its next batch, if there is one."""
        if life != self._lives[worker] or not self._alive[worker]:
            return
        batch = self._next_batch(worker)
        if batch is None:
            self._current[worker] = None
            self._finished[worker] = True
            self._ledger.leave(worker, **self._there())
            self._happened()
            return
        job = self._new_job(worker, batch, anew)
        self._current[worker] = job
        self.jobs.append(job)
        self._out.append(Begin(self._now, job, anew))
        self._at(self._links.pull(worker, self._now), self._compute_, job, life)

    def _new_job(self, worker, batch, anew):
        """What it begins now; `anew` if it is another process."""
        del anew
        self._steps[worker] += 1
        return Job(
            number=len(self.jobs),
            worker=worker,
            step=self._steps[worker] - 1,
            batch=batch,
            pulled=int(self._ledger.state.version),
            pulling=self._now,
        )

    def _next_batch(self, worker):
        """Its next batch, None if there is none, or time is up."""
        if self._max_seconds is not None and self._now >= self._max_seconds:
            return None
        if self._again[worker]:
            return self._again[worker].popleft()
        return self._shares.next(worker)

    def _compute_(self, job, life):
        if life != self._lives[job.worker]:
            return
        job.began = self._now
        seconds = self._draw(job.worker, job.step)
        self._at(self._now + seconds, self._push, job, life)

    def _draw(self, worker, step):
        """Seconds that a step of a worker takes to compute."""
        seconds = self._compute.draw(worker, step, self._streams[worker])
        if not 0 <= seconds < np.inf:
            raise ValueError(
                f"compute must draw finite seconds of at least 0. Received: "
                f"{seconds!r} from {self._compute!r}."
            )
        return seconds

    def _push(self, job, life):
        if life != self._lives[job.worker]:
            return
        job.computed = self._now
        arrival = self._links.push(job.worker, self._now)
        self._at(arrival, self._arrive, job, life)

    def _arrive(self, job, life):
        if life != self._lives[job.worker]:
            return
        job.arrived = self._now
        self._ledger.arrive(
            job.worker, key=job.number, pulled=job.pulled, **self._there()
        )
        left, self._left[job.worker] = self._left[job.worker], None
        if left is not None and left.accepted is None:
            self._drop(left)  # This one takes its place.
        self._happened()
        if self._is_waiting(job.worker):
            self._beat_if_needed()

    def _die(self, worker):
        if not self._alive[worker] or self._finished[worker]:
            return
        self._alive[worker] = False
        self._lives[worker] += 1
        job = self._current[worker]
        if job is not None:
            self._last_heard[worker] = self._now
        if job is not None and job.arrived is None:
            # Nobody has its gradient: who comes back computes it again.
            self._again[worker].extendleft(reversed(job.batches))
            self._current[worker] = None
            self._drop(job)
        self._beat_if_needed()

    def _drop(self, job):
        job.accepted = False
        self._out.append(Drop(self._now, job))

    def _return(self, worker):
        if self._alive[worker] or self._finished[worker]:
            return
        self._alive[worker] = True
        self._entered[worker] = self._now
        if self._current[worker] is not None:
            self._left[worker] = self._current[worker]
        self._begin(worker, self._lives[worker], anew=True)

    # Those who wait, and are woken.

    def _is_waiting(self, worker):
        job = self._current[worker]
        return (
            self._alive[worker]
            and job is not None
            and job.arrived is not None
            and job.decided is None
        )

    def _beat_if_needed(self):
        """While somebody waits, heartbeats decide again.

        They come once a second on real servers; here, when a worker has been
        waited for long enough: before that they change nothing.
        """
        if not any(map(self._is_waiting, range(self._num_workers))):
            return
        there = self._there()
        deadline = self._ledger.next_deadline(
            now=self._now, heard=there["heard"], alive=self._alive
        )
        if deadline is None:
            return
        # One that comes earlier sees to it that there is another.
        if self._beat_at is None or deadline < self._beat_at:
            self._beat_at = deadline
            self._at(deadline, self._beat, deadline)

    def _beat(self, deadline):
        if deadline != self._beat_at:
            return  # Another comes in its place.
        self._beat_at = None
        self._ledger.tick(**self._there())
        self._happened()
        self._beat_if_needed()

    def _there(self):
        heard = [
            self._now if alive else last
            for alive, last in zip(self._alive, self._last_heard, strict=True)
        ]
        return {"now": self._now, "heard": heard, "entered": self._entered}

    # What has been decided.

    def _happened(self):
        state, phases = self._ledger.state, self._ledger.phases
        self._carry_out(state)
        decided = []
        for worker in np.flatnonzero(np.isin(phases, _DECIDED)):
            job = self._current[worker]
            if job is None or job.arrived is None or job.decided is not None:
                continue
            job.decided = self._now
            if phases[worker] == Phase.DROPPED:
                job.staleness = int(state.staleness[worker])
                self._drop(job)
            if self._alive[worker]:
                decided.append(int(worker))
        if not decided:
            return
        self._ledger.go_on(decided, self._now)
        # In the order in which they came, their replies leave.
        for worker in sorted(decided, key=lambda w: state.order[w]):
            job = self._current[worker]
            if not job.accepted and self._method.synchronization.retries:
                self._again[worker].append(job.batch)
            self._begin(worker, self._lives[worker])

    def _carry_out(self, state):
        for entry in read_log(state, self._executed, self.jobs, self._now):
            if entry.job is not None:
                entry.job.staleness = entry.staleness
                entry.job.accepted = True
            if entry.count:
                self._links.update(self._now)
            self._out.append(entry)
        self._executed = int(state.head)
