"""Workers that average with one other worker at a time."""

import dataclasses

import numpy as np

from tfdist.simulation.exchange import Player
from tfdist.simulation.exchange import VirtualExchange


@dataclasses.dataclass(frozen=True, repr=False)
class GossipExchange(VirtualExchange):
    """After each step a worker averages its weights with a random other one's.

    Worker i sends its weights `x` to worker j, which has `y` then. With
    `d = (y - x) / 2`, j takes `y - d`, and i adds `d` when the answer has come,
    and goes on. So the mean over all workers never changes by an exchange. The
    mean is what is evaluated. `decode_seconds` passes once for each answer.

    References:
      Lian, Zhang, Zhang and Liu, "Asynchronous decentralized parallel
      stochastic gradient descent", ICML 2018.
    """

    compresses = False
    strategy_among_peers = "GossipStrategy"

    def player(self, run):
        return _Player(run, self)


class _Player(Player):
    def __init__(self, run, exchange):
        super().__init__(run, exchange)
        self._weights = [run.first[0].copy() for _ in self.workers]

    def seen(self, worker):
        return self.run.version

    def start(self):
        for worker in self.workers:
            self.run.begin(worker, self._weights[worker].copy())

    def step(self, job, gradient):
        worker = job.worker
        self._weights[worker], _ = self.step_of(
            worker, self._weights[worker], gradient
        )
        self.run.updated()
        if len(self.workers) == 1:
            self._end(job)
            return
        partner = int(self.run.streams[worker].integers(len(self.workers) - 1))
        partner += partner >= worker
        sent = self._weights[worker].copy()
        self._exchange(worker, partner, self._meet, job, partner, sent)

    def _exchange(self, sender, receiver, event, *arguments):
        arrival = self.run.nodes.send(
            sender, receiver, self.dense_bytes, self.run.now
        )
        self.run.at(arrival, event, *arguments)

    def _meet(self, job, partner, sent):
        change = (self._weights[partner] - sent) / 2
        self._weights[partner] -= change
        self._exchange(partner, job.worker, self._answered, job, change)

    def _answered(self, job, change):
        self._weights[job.worker] += change
        self._end(job)

    def _end(self, job):
        self.run.done(job)
        self.run.at(
            self.run.now + self.exchange.decode_seconds, self._next, job.worker
        )

    def _next(self, worker):
        self.run.begin(worker, self._weights[worker].copy())

    def center(self):
        return np.mean(self._weights, 0), self.slots[0]
