"""What happens when, where workers take several steps between exchanges."""

from tfdist.simulation.actions import Fetch
from tfdist.simulation.actions import Job
from tfdist.simulation.actions import LocalRun
from tfdist.simulation.local_periods import Periods
from tfdist.simulation.schedule import Schedule

# Far below what anybody is given up after; real workers tell each second.
_TELLS_AFTER_SECONDS = 60.0


def make_schedule(method, num_workers, shares, *, size_of, **arguments):
    """The `Schedule` of a method.

    Args:
      method: A `Method`, resolved.
      num_workers: Number of workers.
      shares: A `Shares`.
      size_of: Callable of a batch: the number of its examples.
      **arguments: Others of `Schedule`.
    """
    if method.local_steps is None:
        return Schedule(method, num_workers, shares, **arguments)
    return LocalSchedule(
        method, num_workers, shares, size_of=size_of, **arguments
    )


class LocalSchedule(Schedule):
    """A virtual cluster whose workers take `LocalSteps`.

    Each step takes a compute time of its own. A worker that has no more data
    pushes what it has done, and leaves.

    Args:
      method: A `Method`, resolved.
      num_workers: Number of workers.
      shares: A `Shares`.
      size_of: Callable of a batch: the number of its examples.
      **arguments: Others of `Schedule`.
    """

    def __init__(self, method, num_workers, shares, *, size_of, **arguments):
        super().__init__(method, num_workers, shares, **arguments)
        self._size_of = size_of
        self._periods = Periods(
            method.local_steps, method.synchronization.averages, num_workers
        )
        # When each worker last told that it works.
        self._told = [0.0] * num_workers
        # Version of the parameters that each worker was last given.
        self._pulled = [0] * num_workers

    def _new_job(self, worker, batch, anew):
        counted, adopts = self._periods.begin(worker, anew)
        if adopts:
            self._pulled[worker] = int(self._ledger.state.version)
        return Job(
            number=len(self.jobs),
            worker=worker,
            step=self._steps[worker],
            batch=batch,
            pulled=self._pulled[worker],
            pulling=self._now,
            local=LocalRun(counted, adopts, [batch]),
        )

    def _compute_(self, job, life):
        if life == self._lives[job.worker]:
            job.began = self._now
            self._go_on(job, life)

    def _go_on(self, job, life):
        """It takes the next step, and fetches before if that is due."""
        if self._periods.fetch_is_due(job.worker):
            self._at(self._links.ask(self._now), self._fetch, job, life)
        else:
            self._step(job, life)

    def _fetch(self, job, life):
        worker = job.worker
        if life != self._lives[worker]:
            return
        self._periods.fetched(worker)
        job.pulled = self._pulled[worker] = int(self._ledger.state.version)
        done = len(job.local.batches) - 1
        self._out.append(Fetch(self._now, job, done))
        self._at(self._links.fetch(worker, self._now), self._step, job, life)

    def _step(self, job, life):
        if life != self._lives[job.worker]:
            return
        seconds = self._draw(job.worker, self._steps[job.worker])
        self._steps[job.worker] += 1
        self._at(self._now + seconds, self._stepped, job, life)

    def _stepped(self, job, life):
        if life != self._lives[job.worker]:
            return
        self._tell_of_work(job)
        batches = job.local.batches
        if self._periods.count(job, self._size_of(batches[-1])):
            self._push(job, life)
            return
        batch = self._next_batch(job.worker)
        if batch is None:
            job.local.is_rest = True
            self._push(job, life)
            return
        batches.append(batch)
        self._go_on(job, life)

    def _tell_of_work(self, job):
        """Its heartbeats say that it works, or it would be given up."""
        if self._now - self._told[job.worker] < _TELLS_AFTER_SECONDS:
            return
        self._told[job.worker] = self._now
        self._ledger.work_on(job.worker, **self._there())
        self._happened()

    def _arrive(self, job, life):
        if life == self._lives[job.worker]:
            self._periods.arrived(job)
        super()._arrive(job, life)

    def _carry_out(self, state):
        before = len(self._out)
        super()._carry_out(state)
        for entry in self._out[before:]:
            self._periods.entered(entry)
