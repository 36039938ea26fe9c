"""The schedule of a virtual cluster in virtual time.

When gradients are ready, arrive and are decided over depends on no gradient.
So the whole course of a run is known without computing one: `Schedule`
plays it, and gives a list of what servers and workers do, in order, for
`training.Training` to compute, or for nobody where time alone is asked for.
"""

import collections

import numpy as np

from tfdist.event_queue import EventQueue
from tfdist.runtime.coordination.coordination import IDLE_SECONDS
from tfdist.simulation import failures as failures_lib
from tfdist.simulation import virtual_clock
from tfdist.simulation.actions import Begin
from tfdist.simulation.actions import Drop
from tfdist.simulation.actions import Fetch
from tfdist.simulation.actions import Job
from tfdist.simulation.actions import read_log
from tfdist.simulation.exchange_periods import periods_of
from tfdist.simulation.network import Links
from tfdist.simulation.queued_shares import WAIT
from tfdist.synchronization.events import Patience
from tfdist.synchronization.in_memory import InMemoryLedger
from tfdist.synchronization.state import Phase

_DECIDED = (Phase.GRANTED, Phase.DROPPED)


class Schedule:
    """A virtual cluster.

    Workers take one step or several between two pushes, each of a compute
    time of its own. One that has no more data pushes what it has done, and
    leaves.

    Args:
      method: A `Method`, resolved.
      num_workers: Number of workers.
      shares: A `Shares`, or a `QueuedShares`.
      size_of: Callable of a batch: the number of its examples.
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
        size_of,
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
            network,
            num_workers,
            push_bytes,
            pull_bytes,
            fetch_bytes,
            is_decided=method.needs_order,
        )
        self._ledger = InMemoryLedger(
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
        self._worker_timeout = worker_timeout
        self._periods = periods_of(method, num_workers, size_of)
        self.jobs = []
        self._events = EventQueue()
        # When something last came of them.
        self.now = 0.0
        # Each worker: the job that it is at, the life that it is in.
        self._current = [None] * num_workers
        self._lives = [0] * num_workers
        self._alive = [True] * num_workers
        self._steps = [0] * num_workers
        self._finished = [False] * num_workers
        # Those that wait for a portion, and whether they are new processes.
        self._idle = {}
        # Batches to be computed again, or left by a process that was killed.
        self._again = [collections.deque() for _ in range(num_workers)]
        # The gradient that such a process was waiting for a decision over.
        self._left = [None] * num_workers
        # None: never.
        self._last_heard = [None] * num_workers
        self._entered = [0.0] * num_workers
        self._died = [0.0] * num_workers
        self._executed = 0
        # When heartbeats will next decide again, None if nobody waits.
        self._beat_at = None
        self._out = []
        failures_lib.check(failures, num_workers)
        for failure in failures:
            self._events.at(failure.at, self._die, failure.worker)
            if failure.until is not None:
                self._events.at(failure.until, self._return, failure.worker)

    def run(self):
        """Plays the whole training.

        Yields:
          `Begin`, `Fetch`, `LogEntry` and `Drop`, in the order in which they
          happen.

        Raises:
          RuntimeError: The method lets workers wait for ever.
        """
        for worker in range(self._num_workers):
            self._events.at(0.0, self._begin, worker)
        while self._events.happen():
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

    @property
    def _now(self):
        return self._events.now

    # What happens to a worker.

    def _begin(self, worker, anew=False):
        """It is given parameters for its next batch, if there is one."""
        if not self._alive[worker]:
            return
        batch = self._next_batch(worker)
        if self._shares.has_changed():
            self._ask_again()
        if batch is WAIT:
            self._current[worker] = None
            self._idle[worker] = anew
            return
        if batch is None:
            self._current[worker] = None
            self._finished[worker] = True
            self._ledger.tick(self._there(), worker, leaving=True)
            self._happened()
            return
        version = int(self._ledger.state.version)
        pulled, local = self._periods.begin(worker, batch, version, anew)
        job = Job(
            number=len(self.jobs),
            worker=worker,
            step=self._steps[worker] - 1,
            batch=batch,
            pulled=pulled,
            pulling=self._now,
            local=local,
        )
        self._current[worker] = job
        self.jobs.append(job)
        self._out.append(Begin(self._now, job, anew))
        self._happens(self._links.pull(worker, self._now), self._pulled, job)

    def _happens(self, time, event, job):
        """To a job, unless its process has died by then."""
        life = self._lives[job.worker]
        self._events.at(time, self._if_alive, life, event, job)

    def _if_alive(self, life, event, job):
        if life == self._lives[job.worker]:
            event(job)

    def _next_batch(self, worker):
        """Its next batch, None if there is none, or time is up."""
        if self._max_seconds is not None and self._now >= self._max_seconds:
            return None
        if self._again[worker]:
            batch = self._again[worker].popleft()
        else:
            batch = self._shares.next(worker, self._lost())
        if batch is not None and batch is not WAIT:
            self._steps[worker] += 1
        return batch

    def _lost(self):
        """Workers that have been silent for too long."""
        return [
            worker
            for worker, alive in enumerate(self._alive)
            if not alive
            and self._now >= self._died[worker] + self._worker_timeout
        ]

    def _ask_again(self):
        """Workers that wait for a portion ask whether there is one."""
        for worker, anew in sorted(self._idle.items()):
            self._events.at(self._now, self._begin, worker, anew)
        self._idle.clear()

    def _pulled(self, job):
        job.began = self._now
        self._go_on(job)

    def _go_on(self, job):
        """It takes the next step, and fetches before if that is due."""
        if self._periods.fetch_is_due(job.worker):
            job.fetching -= self._now
            self._happens(self._links.ask(self._now), self._fetch, job)
        else:
            self._step(job)

    def _fetch(self, job):
        job.pulled = int(self._ledger.state.version)
        self._periods.fetched(job.worker, job.pulled)
        self._out.append(Fetch(self._now, job, done=job.steps - 1))
        fetched_at = self._links.fetch(job.worker, self._now)
        job.fetching += fetched_at
        self._happens(fetched_at, self._step, job)

    def _step(self, job):
        worker = job.worker
        seconds = self._compute.draw(
            worker, self._steps[worker] - 1, self._streams[worker]
        )
        if not 0 <= seconds < np.inf:
            raise ValueError(
                "Argument `compute` must draw finite seconds of at least 0. "
                f"Received: {seconds!r} from {self._compute!r}."
            )
        self._happens(self._now + seconds, self._stepped, job)

    def _stepped(self, job):
        if self._periods.tells_of_work(job.worker, self._now):
            self._ledger.tick(self._there(), job.worker, working=True)
            self._happened()
        if not self._periods.count(job):
            batch = self._next_batch(job.worker)
            if batch is not None:
                job.local.batches.append(batch)
                self._go_on(job)
                return
            job.local.is_rest = True
        self._push(job)

    def _push(self, job):
        job.computed = self._now
        arrives_at = self._links.push(job.worker, self._now)
        self._happens(arrives_at, self._arrive, job)

    def _arrive(self, job):
        self._periods.arrived(job)
        self._shares.arrived(job.batch)
        job.arrived = self._now
        self._ledger.arrive(
            self._there(), job.worker, key=job.number, pulled=job.pulled
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
        self._died[worker] = self._now
        self._idle.pop(worker, None)
        self._shares.died(worker)
        if self._shares.goes_to_others:
            self._events.at(self._now + self._worker_timeout, self._ask_again)
        job = self._current[worker]
        if job is not None:
            self._last_heard[worker] = self._now
        if job is not None and job.arrived is None:
            # Nobody has its gradient: who comes back computes it again.
            if not self._shares.goes_to_others:
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
        self._begin(worker, anew=True)

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
        deadline = self._ledger.next_deadline(self._there(), self._alive)
        if deadline is None:
            return
        deadline = virtual_clock.seconds(deadline)
        # One that comes earlier sees to it that there is another.
        if self._beat_at is None or deadline < self._beat_at:
            self._beat_at = deadline
            self._events.at(deadline, self._beat, deadline)

    def _beat(self, deadline):
        if deadline != self._beat_at:
            return  # Another comes in its place.
        self._beat_at = None
        self._ledger.tick(self._there())
        self._happened()
        self._beat_if_needed()

    def _there(self):
        heard = [
            self._now if alive else last
            for alive, last in zip(self._alive, self._last_heard, strict=True)
        ]
        return virtual_clock.attendance(self._now, heard, self._entered)

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
        now = virtual_clock.microseconds(self._now)
        self._ledger.go_on(decided, now)
        # In the order in which they came, their replies leave.
        for worker in sorted(decided, key=lambda w: state.order[w]):
            job = self._current[worker]
            if not job.accepted and self._method.synchronization.retries:
                self._again[worker].append(job.batch)
            self._begin(worker)

    def _carry_out(self, state):
        for entry in read_log(state, self._executed, self.jobs, self._now):
            if entry.job is not None:
                entry.job.staleness = entry.staleness
                entry.job.accepted = True
            if entry.count:
                self._links.update(self._now)
            self._periods.entered(entry)
            self._out.append(entry)
        self._executed = int(state.head)
