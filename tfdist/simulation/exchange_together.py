"""Workers that exchange all together: after each step, or after several."""

import dataclasses

import numpy as np

from tfdist import checks
from tfdist.simulation import reductions
from tfdist.simulation.exchange import Player
from tfdist.simulation.exchange import VirtualExchange


@dataclasses.dataclass(frozen=True, repr=False)
class SynchronousExchange(VirtualExchange):
    """Synchronous SGD: all apply the mean of all gradients.

    Gradients are summed in a ring. With a codec each worker's message goes
    round the ring to all others, which decode it. The optimizer clips the mean.
    """

    clips_means = True

    def player(self, run):
        return _SynchronousPlayer(run, self)


@dataclasses.dataclass(frozen=True, repr=False)
class AveragingExchange(VirtualExchange):
    """Local SGD: workers take steps alone, then average weights in a ring.

    In a mean a worker counts by its steps. Optimizers' state stays local.

    Attributes:
      period: Steps between two averages.
    """

    period: int = 10
    compresses = False

    def __post_init__(self):
        super().__post_init__()
        period = checks.count("period", self.period)
        object.__setattr__(self, "period", period)

    def player(self, run):
        return _AveragingPlayer(run, self)


class _Together(Player):
    """Workers that wait for each other."""

    def __init__(self, run, exchange):
        super().__init__(run, exchange)
        self._weights, _, self._slots = run.first
        self._active = set(self.workers)
        # Of those who wait, by worker.
        self._waiting = {}

    def seen(self, worker):
        return self.run.version

    def start(self):
        self._begin_all()

    def _begin_all(self):
        self._waiting = {}
        for worker in self.workers:
            self._begin(worker, self._weights)

    def _begin(self, worker, weights):
        """Returns whether the worker takes a step; else it leaves."""
        if self.run.begin(worker, weights):
            return True
        self._active.discard(worker)
        return False

    def _wait(self, worker, item):
        self._waiting[worker] = item
        self._meet_if_all()

    def _meet_if_all(self):
        if self._waiting and self._active <= self._waiting.keys():
            waiting, self._waiting = self._waiting, {}
            items = [waiting[worker] for worker in sorted(waiting)]
            now = self.run.now + self._seconds(items)
            self.run.at(now, self._meet, items)

    def _ring(self, num_bytes):
        """Seconds of a sum in a ring of all workers; counts its bytes."""
        number = len(self.workers)
        each = 2 * (number - 1) / number * num_bytes
        self.run.nodes.bytes[:number] += each
        return reductions.ring(self.run.network, number, num_bytes)

    def center(self):
        return self._weights, self._slots


class _SynchronousPlayer(_Together):
    def step(self, job, gradient):
        update = self.encode(job.worker, gradient)
        ready = self.run.now + self.exchange.encode_seconds
        self.run.at(ready, self._wait, job.worker, (job, update))

    def _seconds(self, items):
        if self.exchange.compression is None:
            return self._ring(self.dense_bytes)
        # In each round every worker passes on the message that it got last.
        network, sizes = self.run.network, [u.num_bytes for _, u in items]
        for place, (job, _) in enumerate(items):
            others = sum(sizes) - sizes[place]
            self.run.nodes.bytes[job.worker] += others
        rounds = len(items) - 1
        speed = network.bandwidth_gbps * 1e9 / 8
        return rounds * (network.latency_seconds + max(sizes) / speed) + (
            len(items) * self.exchange.decode_seconds
        )

    def _meet(self, items):
        total = np.zeros_like(self._weights)
        for _, update in items:
            update.add_to(total, 1.0)
        self._weights, self._slots, _ = self.run.model.apply(
            self._weights, self._slots, total / len(items)
        )
        self.run.updated()
        self.run.done(*(job for job, _ in items))
        self._begin_all()


class _AveragingPlayer(_Together):
    def __init__(self, run, exchange):
        super().__init__(run, exchange)
        self._own = [run.first[0]] * len(self.workers)
        # Jobs since the last average, by worker.
        self._jobs = [[] for _ in self.workers]

    def step(self, job, gradient):
        worker = job.worker
        self._own[worker], _ = self.step_of(worker, self._own[worker], gradient)
        self._jobs[worker].append(job)
        if len(self._jobs[worker]) < self.exchange.period:
            if self._begin(worker, self._own[worker]):
                return
        self._wait(worker, worker)

    def _seconds(self, items):
        return self._ring(self.dense_bytes)

    def _meet(self, items):
        counts = [len(self._jobs[worker]) for worker in items]
        shares = np.array(counts, self._weights.dtype) / sum(counts)
        own = [self._own[worker] for worker in items]
        self._weights = np.tensordot(shares, own, 1)
        self._own = [self._weights] * len(self.workers)
        self._slots = self.slots[0]
        self.run.updated()
        jobs = [job for worker in items for job in self._jobs[worker]]
        self._jobs = [[] for _ in self.workers]
        self.run.done(*jobs)
        self._begin_all()
