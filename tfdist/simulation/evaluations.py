"""Evaluations over all data in virtual time, handed out in portions.

The same as real workers do in `sandblaster.portion_worker`, and the chief in
`sandblaster.evaluation`, in numbers. The queue is theirs.
"""

import dataclasses
import math

import numpy as np

from tfdist.event_queue import EventQueue
from tfdist.sandblaster import evaluation
from tfdist.sandblaster import portion_worker
from tfdist.sandblaster import whole_data
from tfdist.sandblaster import work_queue
from tfdist.simulation import failures as failures_lib
from tfdist.simulation.actions import Job
from tfdist.simulation.actions import LocalRun
from tfdist.simulation.network import Links

CHIEF = 0
# Round trips of the chief: it frees what is left, and opens a queue (which it
# reads and replaces); it sums up; it notes an iteration, closes the queue, and
# reads what it has noted.
_TO_OPEN, _TO_SUM, _TO_CLOSE = 3, 1, 5


@dataclasses.dataclass
class _Work:
    """An attempt at a portion, on its worker.

    Attributes:
      attempt: The `Attempt`.
      stamp: Number of its evaluation.
      job: Its `Job`.
      left: How many batches are left.
      asked: When the worker last asked whether it is still wanted.
    """

    attempt: work_queue.Attempt
    stamp: int
    job: Job
    left: int
    asked: float = 0.0


class VirtualEvaluations:
    """The workers of a `SandblasterStrategy`, of which the first is the chief.

    A message to the servers and back takes twice the latency; a list of
    commands, and the addition of a gradient, `server_seconds` more. A worker
    that waits for portions takes one as soon as there is one.

    Args:
      num_batches: Batches of the data.
      num_workers: Number of workers.
      strategy: A `Sandblaster`.
      compute: A `ComputeTime`, of a batch.
      network: A `Network`.
      num_bytes: Of a vector on each server, a list of numbers.
      failures: `Failure`s, not of the chief.
      seed: Of compute times.
      worker_timeout: Seconds after which the portion of a silent worker is
        there again.

    Attributes:
      portions: Of the data, a list of ranges of batches.
      jobs: `Job`s, one for each attempt at a portion.
      seconds: Of each evaluation, a list.
      fetches: How often a worker has fetched the parameters.

    Raises:
      ValueError: A failure is one of the chief, or does not fit.
    """

    def __init__(
        self,
        num_batches,
        num_workers,
        strategy,
        *,
        compute,
        network,
        num_bytes,
        failures=(),
        seed=0,
        worker_timeout=10.0,
    ):
        failures_lib.check(failures, num_workers)
        if any(failure.worker == CHIEF for failure in failures):
            raise ValueError(
                "Argument `failures` must not name worker 0 with Sandblaster: "
                "it is the coordinator, and what its loss costs is not "
                f"simulated. Received: failures={list(failures)!r}"
            )
        self.portions = whole_data.portions(
            range(num_batches), strategy.portions_per_worker * num_workers
        )
        self._patience = strategy.backup_after
        self._compute = compute
        self._links = Links(network, num_workers, num_bytes, num_bytes)
        self._latency = network.latency_seconds + network.overhead_seconds / 2
        self._server_seconds = network.server_seconds
        self._worker_timeout = worker_timeout
        self._streams = [
            np.random.default_rng([seed, worker])
            for worker in range(num_workers)
        ]
        self._events = EventQueue()
        self.jobs, self.seconds, self.fetches = [], [], 0
        # Number of the evaluation, its queue, the portions in that, and how
        # many of them the chief has added.
        self._stamp, self._added = 0, 0
        self._queue = work_queue.WorkQueue(0, self._patience)
        self._places = []
        self._is_open = self._is_over = False
        self._backup_at = None
        # By worker.
        self._steps = [0] * num_workers
        self._loaded = [None] * num_workers
        self._jobs = [None] * num_workers
        self._lives = [0] * num_workers
        self._died = [None] * num_workers
        self._resting = set()
        for worker in range(num_workers):
            if worker != CHIEF:
                self._rest(worker)
        for failure in failures:
            self._events.at(failure.at, self._die, failure.worker)
            if failure.until is not None:
                self._events.at(failure.until, self._return, failure.worker)

    @property
    def now(self):
        """Virtual seconds."""
        return self._events.now

    # The chief.

    def evaluate(self, portions=None, sums=1):
        """Plays an evaluation at a new point, until the chief has its sum.

        Args:
          portions: Numbers of those that are evaluated; None for all.
          sums: How many sums the chief makes of them.
        """
        began = self.now
        self._spend(_TO_OPEN)
        self._stamp += 1
        self._added = 0
        if portions is None:
            portions = range(len(self.portions))
        self._places = portions
        self._queue = work_queue.WorkQueue(
            len(portions),
            self._patience,
            self._queue.next_ticket,
            self._queue.typical,
        )
        self._is_open, self._is_over = True, False
        self._wake()
        self._look(CHIEF)
        self._play(lambda: self._is_over)
        self._spend(sums * _TO_SUM, sums * self._server_seconds)
        self.seconds.append(self.now - began)

    def command(self):
        """The servers carry out a list of commands."""
        self._spend(1, self._server_seconds)

    def close(self):
        """An iteration has ended: there are no portions."""
        self._is_open = False
        self._spend(_TO_CLOSE)

    def _spend(self, round_trips, seconds=0.0):
        """The chief waits; others go on."""
        ends = []
        self._after(round_trips, lambda: ends.append(True), seconds=seconds)
        self._play(lambda: ends)

    def _play(self, is_over):
        while not is_over():
            if not self._events.happen():
                raise RuntimeError("No worker is left that computes portions.")

    def _turn(self, work, has_worked):
        """The chief has read which portions count, and adds these.

        Args:
          work: The `_Work` that it has taken, or None.
          has_worked: Whether it has computed one since its last turn.
        """
        accepted = self._queue.accepted[self._added :]
        if None in accepted:
            accepted = accepted[: accepted.index(None)]
        if accepted:
            self._added += len(accepted)
            seconds = len(accepted) * self._server_seconds
            self._after(1, self._go_on, work, seconds=seconds)
        elif work is not None or has_worked:
            self._go_on(work)
        else:
            self._rest(CHIEF)
            self._give_back_lost()

    def _go_on(self, work):
        if self._added == len(self._places):
            self._is_over = True
        elif work is not None:
            self._begin(work)
        else:
            self._look(CHIEF)

    def _give_back_lost(self):
        lost = [
            worker
            for worker, died in enumerate(self._died)
            if died is not None and self.now >= died + self._worker_timeout
        ]
        if self._queue.give_back(lost):
            self._wake()

    # A worker. Its process may die, and what was to happen to it then does not.

    def _after(self, round_trips, event, *arguments, seconds=0.0):
        """Notes what happens after some messages to the servers and back."""
        seconds += 2 * round_trips * self._latency
        self._events.at(self.now + seconds, event, *arguments)

    def _at(self, time, worker, event, *arguments):
        life = self._lives[worker]
        self._events.at(time, self._if_alive, worker, life, event, *arguments)

    def _if_alive(self, worker, life, event, *arguments):
        if life == self._lives[worker]:
            event(*arguments)

    def _soon(self, round_trips, worker, event, *arguments):
        """As `_after`, to a worker."""
        time = self.now + 2 * round_trips * self._latency
        self._at(time, worker, event, *arguments)

    def _rest(self, worker):
        """It waits until there may be something to do."""
        self._resting.add(worker)
        due = self._queue.backup_due if self._is_open else None
        if due is None or not math.isfinite(due):
            return
        # Real workers look so often.
        due = max(due, self.now) + evaluation.POLL_SECONDS
        if self._backup_at is None or due < self._backup_at:
            self._backup_at = due
            self._events.at(due, self._wake_for_backup, due)

    def _wake_for_backup(self, due):
        if due == self._backup_at:
            self._backup_at = None
            self._wake()

    def _wake(self):
        resting, self._resting = self._resting, set()
        for worker in sorted(resting):
            self._at(self.now, worker, self._look, worker)

    def _look(self, worker):
        """It looks for a portion, in the time that a record takes to change."""
        self._soon(1, worker, self._found, worker)

    def _found(self, worker):
        work = self._take(worker)
        if work is not None:
            self._soon(1, worker, self._begin, work)
        elif worker == CHIEF:
            self._soon(1, worker, self._turn, None, False)
        else:
            self._rest(worker)

    def _take(self, worker):
        """Takes a portion; returns the `_Work`, or None if there is none."""
        if not self._is_open:
            return None
        attempt = self._queue.take(worker, self.now)
        if attempt is None:
            return None
        batches = self.portions[self._places[attempt.portion]]
        job = Job(
            number=len(self.jobs),
            worker=worker,
            step=self._steps[worker],
            batch=batches[0],
            pulled=self._stamp,
            pulling=self.now,
            staleness=0,
            local=LocalRun(self._steps[worker], True, list(batches)),
        )
        self.jobs.append(job)
        self._jobs[worker] = job
        return _Work(attempt, self._stamp, job, len(batches))

    def _next(self, worker, work):
        """It is done with a portion, and has perhaps taken the next one."""
        if worker == CHIEF:
            self._soon(1, worker, self._turn, work, True)
        elif work is None:
            self._look(worker)
        else:
            self._begin(work)

    def _begin(self, work):
        worker = work.job.worker
        if self._loaded[worker] == work.stamp:
            self._compute_first(work)
            return
        self._at(self._links.ask(self.now), worker, self._fetch, work)

    def _fetch(self, work):
        worker = work.job.worker
        self.fetches += 1
        fetched_at = self._links.fetch(worker, self.now)
        # It asks whether the point is still there.
        checked_at = fetched_at + 2 * self._latency
        self._at(checked_at, worker, self._fetched, work)

    def _fetched(self, work):
        worker = work.job.worker
        if self._is_wanted(work):
            self._loaded[worker] = work.stamp
            self._compute_first(work)
        else:
            work.job.began = self.now
            self._abandon(work)

    def _is_wanted(self, work):
        return self._is_open and self._queue.is_open(work.attempt.ticket)

    def _compute_first(self, work):
        work.job.began = work.asked = self.now
        self._compute_next(work)

    def _compute_next(self, work):
        worker = work.job.worker
        if not work.left:
            work.job.computed = self.now
            kept_at = self._links.push(worker, self.now)
            self._at(kept_at, worker, self._kept, work)
        elif self.now - work.asked < portion_worker.ASK_AGAIN_SECONDS:
            self._compute_batch(work)
        else:
            work.asked = self.now
            self._soon(1, worker, self._asked, work)

    def _asked(self, work):
        if self._is_wanted(work):
            self._compute_batch(work)
        else:
            self._abandon(work)

    def _compute_batch(self, work):
        worker = work.job.worker
        seconds = self._compute.draw(
            worker, self._steps[worker], self._streams[worker]
        )
        self._steps[worker] += 1
        work.left -= 1
        self._at(self.now + seconds, worker, self._compute_next, work)

    def _abandon(self, work):
        job = work.job
        job.computed = job.arrived = job.decided = self.now
        job.accepted = False
        self._jobs[job.worker] = None
        self._next(job.worker, None)

    def _kept(self, work):
        worker = work.job.worker
        work.job.arrived = self.now
        # Its answer, and a look at the record that is to be changed.
        changed_at = self.now + 3 * self._latency
        self._at(changed_at, worker, self._complete, work)

    def _complete(self, work):
        job = work.job
        ticket = work.attempt.ticket
        job.accepted = self._is_open and self._queue.complete(ticket, self.now)
        if job.accepted:
            self._wake()
        taken = self._take(job.worker)
        self._soon(1, job.worker, self._completed, work, taken)

    def _completed(self, work, taken):
        work.job.decided = self.now
        if taken is None:
            self._jobs[work.job.worker] = None
        self._next(work.job.worker, taken)

    def _die(self, worker):
        self._lives[worker] += 1
        self._died[worker] = self.now
        self._loaded[worker] = None
        self._resting.discard(worker)
        job, self._jobs[worker] = self._jobs[worker], None
        if job is not None and job.accepted is None:
            job.accepted = False
        lost_at = self.now + self._worker_timeout
        self._events.at(lost_at, self._wake)

    def _return(self, worker):
        self._died[worker] = None
        self._look(worker)
