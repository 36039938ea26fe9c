"""Steps that virtual workers take between exchanges, and count."""

import dataclasses

import numpy as np
import tensorflow as tf

from tfdist.runtime.local_steps.local_speeds import FORGOTTEN_AFTER_PERIODS
from tfdist.simulation.actions import LocalRun

# As on real workers: a period has taken a moment at least.
_SHORTEST_SECONDS = 1e-9
# Far below what anybody is given up after; real workers tell each second.
_TELLS_AFTER_SECONDS = 60.0


def periods_of(method, num_workers, size_of):
    """Returns the rule for when workers of a `Schedule` exchange.

    Args:
      method: A `Method`, resolved.
      num_workers: Number of workers.
      size_of: Callable of a batch: the number of its examples.
    """
    if method.local_steps is None:
        return OneStepPeriods()
    return Periods(
        method.local_steps,
        method.synchronization.averages,
        num_workers,
        size_of,
    )


class OneStepPeriods:
    """See `Periods`, whose part it takes where each step is exchanged."""

    def begin(self, worker, batch, version, anew):
        """Each step is computed from what the servers give."""
        return version, None

    def tells_of_work(self, worker, now):
        """Its gradient will tell."""
        return False

    def count(self, job):
        """A push is due after each step."""
        return True

    def fetch_is_due(self, worker):
        """Each push has brought a fetch."""
        return False

    def arrived(self, job):
        """Does nothing."""

    def entered(self, entry):
        """Does nothing."""


@dataclasses.dataclass
class _Worker:
    """One process of a worker.

    Attributes:
      counted: Steps that its optimizer has counted.
      since_push: Steps since its last push.
      since_fetch: Steps since it was last given parameters.
      pulled: Version of the parameters that it was last given.
      is_timed: Whether it has exchanged before, so that it knows how long the
        period has taken.
      speeds: Steps per second of all workers, and when these were measured,
        `(2, num_workers)`, as it was last told.
    """

    counted: int = 0
    since_push: int = 0
    since_fetch: int = 0
    pulled: int = 0
    is_timed: bool = False
    speeds: np.ndarray | None = None


class Periods:
    """The step counters of workers and servers, which decide who exchanges.

    What real workers do in `runtime.local_steps.local_exchange` and
    `local_speeds`, in numbers: it depends on no weights.

    Args:
      method: A `LocalSteps`, resolved.
      averages: Whether updates are means over workers.
      num_workers: Number of workers.
      size_of: Callable of a batch: the number of its examples.
    """

    def __init__(self, method, averages, num_workers, size_of):
        self._method = method
        self._size_of = size_of
        self._averages = averages
        self._weighs = averages and method.weighted
        self._steps = _ByStep(method.steps)
        self._fetch_steps = None
        if method.fetch_steps(tf.ones([], tf.int64)) is not None:
            self._fetch_steps = _ByStep(method.fetch_steps)
        self._workers = [None] * num_workers
        # When each last told that it works.
        self._told = [0.0] * num_workers
        # On the servers: the most steps that anybody has made, and, of the
        # update that is being collected, (counter, weight) of each push.
        self._counted = 0
        self._collected = []
        self._speeds = np.zeros((2, num_workers))

    def begin(self, worker, batch, version, anew):
        """A worker has been told what became of its push, or begins.

        Args:
          worker: Its number.
          batch: Its next one.
          version: Of the parameters that servers have now.
          anew: Whether it is another process than before.

        Returns:
          Version of the parameters that it goes on from, and a `LocalRun`.
        """
        one = self._workers[worker]
        begins = anew or one is None
        if begins:
            # From then on it counts its own.
            one = self._workers[worker] = _Worker(counted=self._counted)
        one.since_push = 0
        one.is_timed = not begins
        one.speeds = self._speeds.copy()
        adopts = begins or self._fetch_steps is None
        if adopts:
            self.fetched(worker, version)
        return one.pulled, LocalRun(one.counted, adopts, [batch])

    def tells_of_work(self, worker, now):
        """Whether its heartbeat says that it works, or it would be given up."""
        if now - self._told[worker] < _TELLS_AFTER_SECONDS:
            return False
        self._told[worker] = now
        return True

    def count(self, job):
        """Counts a step of a `Job` that is done; whether a push is due."""
        one = self._workers[job.worker]
        one.counted += 1
        one.since_push += 1
        one.since_fetch += 1
        job.local.examples += self._size_of(job.local.batches[-1])
        return one.since_push >= self._share_of(
            self._steps(one.counted), one, job.worker
        )

    def _share_of(self, steps, one, worker):
        """Returns the share of `steps` that suits this worker's speed."""
        if not self._method.dynamic:
            return steps
        speeds, times = one.speeds
        share, mine = 1.0, speeds[worker]
        if mine > 0:
            oldest = times[worker] - FORGOTTEN_AFTER_PERIODS * steps / mine
            share = mine / speeds[times >= oldest].max()
        # As real workers do: equal speeds are not to lose a step.
        return max(1, int(np.floor(share * steps + 1e-9)))

    def fetch_is_due(self, worker):
        """Whether a worker fetches before it goes on."""
        one = self._workers[worker]
        return (
            self._fetch_steps is not None
            and one.since_fetch > 0
            and one.since_fetch >= self._fetch_steps(one.counted)
        )

    def fetched(self, worker, version):
        """A worker is given the parameters of that version."""
        one = self._workers[worker]
        one.since_fetch = 0
        one.pulled = version

    def arrived(self, job):
        """Notes that a worker's push has reached the servers."""
        speed = 0.0
        if self._workers[job.worker].is_timed:
            seconds = max(job.computed - job.began, _SHORTEST_SECONDS)
            speed = job.steps / seconds
        self._speeds[:, job.worker] = speed, job.computed

    def entered(self, entry):
        """Servers have carried out a `LogEntry`."""
        if entry.job is not None:
            run = entry.job.local
            counted = run.counted + len(run.batches)
            if not self._averages:
                self._advance(counted)
                return
            if entry.first:
                self._collected = []
            weight = run.examples if self._weighs else 1
            self._collected.append((counted, weight))
        if entry.count:
            counted, weights = zip(*self._collected, strict=True)
            self._advance(np.average(counted, weights=weights))

    def _advance(self, counted):
        """Servers' step counter never falls."""
        self._counted = max(self._counted, int(np.round(counted)))


class _ByStep:
    """A method's number of steps, asked once for each step.

    Args:
      function: Of a scalar int64 tensor.
    """

    def __init__(self, function):
        self._function = tf.function(
            lambda step: tf.cast(function(step), tf.int64), autograph=False
        ).get_concrete_function(tf.TensorSpec([], tf.int64))
        self._known = {}

    def __call__(self, step):
        if step not in self._known:
            found = self._function(tf.constant(step, tf.int64))
            self._known[step] = int(found)
        return self._known[step]
