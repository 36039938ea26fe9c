"""The schedule of a real run, from what its workers have recorded."""

import collections

import numpy as np

from tfdist.simulation import virtual_clock
from tfdist.simulation.actions import Begin
from tfdist.simulation.actions import Drop
from tfdist.simulation.actions import Job
from tfdist.simulation.actions import read_log
from tfdist.synchronization.events import Patience
from tfdist.synchronization.in_memory import InMemoryLedger
from tfdist.synchronization.state import Phase

_WAITING = (Phase.ARRIVED, Phase.ACCEPTED)
_DECIDED = (Phase.GRANTED, Phase.DROPPED)
# Nobody is given up for being silent: no time passes.
_PATIENCE = Patience.of_seconds(silent=1.0, missing=1.0, idle=1.0)


class RecordedSchedule:
    """The actions of a real run, decided over once more.

    A source of actions as `schedule.Schedule` is. Gradients arrive in the
    order of the trace and are decided over by the method; what comes out has
    to be what the trace says.

    When a worker that had no more gradients told the others so is not in the
    trace, and matters only where these wait for it: it is taken to be when
    what the trace says would be impossible otherwise.

    Args:
      method: A `Method`, resolved.
      trace: A `Trace`.
      shares: A `Shares`.
      servers: Numbers of the servers that hold parameters.

    Attributes:
      jobs: All `Job`s, in the order of their arrivals.
      actions: All that happens, a list.
      now: Seconds, when the last gradient was decided over.

    Raises:
      ValueError: The trace is not complete, or the method does not do what it
        says; the message names the file, the worker and the step.
    """

    def __init__(self, method, trace, shares, servers):
        self._method = method
        self._trace = trace
        self._servers = servers
        self._ledger = InMemoryLedger(
            method.synchronization,
            trace.num_workers,
            patience=_PATIENCE,
            forgets=method.remembers_workers,
        )
        begin = [0.0] * trace.num_workers
        self._there = virtual_clock.attendance(0.0, begin, begin)
        self._executed = 0
        self._version = 0
        self._current = [None] * trace.num_workers
        self._last = {}
        self._left = set()
        # By version, which gradients are computed from it, and whose of the
        # servers' parameters.
        self._wanted = collections.defaultdict(list)
        self.now = 0.0
        self.actions = []
        self.jobs = self._make_jobs(shares)
        self._reach_version()
        for job in self.jobs:
            self._arrive(job)
        self._arrive(None)
        self.now = max(job.decided for job in self.jobs)

    def run(self):
        """Returns an iterator of `Begin`, `LogEntry` and `Drop`."""
        return iter(self.actions)

    def _make_jobs(self, shares):
        jobs = []
        batches = {}
        again = set()
        for worker, number in self._trace.order():
            step = self._trace.workers[worker][number]
            if worker not in again:
                batches[worker] = shares.next(worker)
            again.discard(worker)
            if not step.accepted and self._method.synchronization.retries:
                again.add(worker)
            computed = step.time - step.exchange_seconds - step.wait_seconds
            began = computed - step.compute_seconds
            job = Job(
                number=len(jobs),
                worker=worker,
                step=number,
                batch=batches[worker],
                pulled=step.pulled,
                pulling=began,
                began=began,
                computed=computed,
                arrived=step.time - step.wait_seconds,
                decided=step.time,
            )
            jobs.append(job)
            self._last[worker] = job
            for version, servers in self._versions(step).items():
                self._wanted[version].append((job, servers))
        return jobs

    def _versions(self, step):
        """Returns the versions a step was computed from -> servers, or None."""
        versions = collections.defaultdict(set)
        for server in self._servers:
            versions[step.pulled_by_server[server]].add(server)
        if len(versions) == 1:
            return dict.fromkeys(versions)
        return {v: frozenset(servers) for v, servers in versions.items()}

    def _step(self, job):
        return self._trace.workers[job.worker][job.step]

    def _where(self, job):
        return self._trace.where(job.worker, job.step)

    # One event after the other.

    def _arrive(self, job):
        """A gradient arrives; None: there are no more of them."""
        before = self._ledger.save()
        complaint = None
        while True:
            found = self._try(job)
            if found is None:
                break
            # If nobody has to go for it to be as it was, that is the reason.
            complaint = complaint or found
            self._ledger.restore(before)
            worker = self._next_to_leave()
            if worker is None:
                raise ValueError(complaint)
            self._left.add(worker)
            self._ledger.tick(self._there, worker, leaving=True)
            before = self._ledger.save()
        self._carry_out()

    def _next_to_leave(self):
        """A worker that may have left by now and has not, or None."""
        if not self._method.synchronization.waits:
            return None  # Nobody would wait for it anyway.
        for job in sorted(self._last.values(), key=lambda job: job.number):
            if (
                self._current[job.worker] is job
                and job.worker not in self._left
                and self._ledger.phases[job.worker] not in _WAITING
            ):
                return job.worker
        return None

    def _try(self, job):
        """Lets a gradient arrive; what contradicts the trace then, or None."""
        if job is None:
            waiting = np.flatnonzero(np.isin(self._ledger.phases, _WAITING))
            if waiting.size:
                last = self._current[waiting[0]]
                return f"{self._where(last)}: {self._never(last)}"
            return self._contradiction()
        here = self._where(job)
        if self._ledger.phases[job.worker] in _WAITING:
            earlier = self._current[job.worker]
            return (
                f"{here}: it arrived while {self._where(earlier)}, still "
                f"waited: {self._never(earlier)}"
            )
        step = self._step(job)
        newest = max(step.pulled_by_server[server] for server in self._servers)
        newest = max(newest, step.pulled)
        version = int(self._ledger.state.version)
        if newest > version:
            return (
                f"{here}: pulled (pulled_by_server) must be a version that "
                f"there was when it arrived, at most {version}. Received: "
                f"{newest}."
            )
        self._current[job.worker], earlier = job, self._current[job.worker]
        self._ledger.arrive(
            self._there, job.worker, key=job.number, pulled=job.pulled
        )
        found = self._contradiction()
        if found is not None:
            self._current[job.worker] = earlier
        return found

    def _never(self, job):
        return (
            f"with {self._method.synchronization!r} {self._where(job)}, is "
            "not decided over by then. Was it another method, or were there "
            "other workers?"
        )

    def _contradiction(self):
        """Returns how a decision differs from the trace, or None."""
        state = self._ledger.state
        decided = [
            (entry.job, True, entry.staleness)
            for entry in read_log(state, self._executed, self.jobs, self.now)
            if entry.job is not None
        ]
        decided += [
            (job, False, int(state.staleness[job.worker]))
            for job in self._dropped()
        ]
        for job, accepted, staleness in decided:
            step = self._step(job)
            if (step.accepted, step.staleness) != (accepted, staleness):
                return (
                    f"{self._where(job)}: with "
                    f"{self._method.synchronization!r} it has "
                    f"accepted={accepted} and staleness={staleness}. In the "
                    f"trace: accepted={step.accepted} and "
                    f"staleness={step.staleness}."
                )
        return None

    def _dropped(self):
        """Gradients that have been dropped and not noted yet."""
        return [
            self._current[worker]
            for worker in np.flatnonzero(self._ledger.phases == Phase.DROPPED)
            if self._current[worker].accepted is None
        ]

    def _carry_out(self):
        """Carries out what has been decided."""
        state = self._ledger.state
        current = [job for job in self._current if job is not None]
        self.now = max((self.now, *(job.arrived for job in current)))
        for job in self._dropped():
            job.accepted = False
            job.staleness = int(state.staleness[job.worker])
            self.actions.append(Drop(self.now, job))
        for entry in read_log(state, self._executed, self.jobs, self.now):
            if entry.job is not None:
                entry.job.accepted = True
                entry.job.staleness = entry.staleness
            self.actions.append(entry)
            if entry.count:
                self._version += 1
                self._reach_version()
        self._executed = int(state.head)
        decided = np.flatnonzero(np.isin(self._ledger.phases, _DECIDED))
        if decided.size:
            self._ledger.go_on(decided, self._there.now)

    def _reach_version(self):
        """There are new parameters: who computes from them is given them."""
        for job, servers in self._wanted.pop(self._version, ()):
            self.actions.append(Begin(self.now, job, servers=servers))
