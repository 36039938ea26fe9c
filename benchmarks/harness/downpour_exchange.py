"""Downpour SGD between virtual workers and a server, in NumPy."""

import dataclasses

from tfdist.simulation.exchange import Player
from tfdist.simulation.exchange import VirtualExchange


@dataclasses.dataclass(frozen=True, repr=False)
class DownpourExchange(VirtualExchange):
    """A worker pushes the sum of its gradients, and fetches, now and then.

    Dean et al., NIPS 2012, section 4.1. Between two fetches a worker takes
    steps of plain SGD by itself, with `own_rate` of the `NumPyModel`. A worker
    waits for what it fetches: its push of that moment is in it.

    Attributes:
      n_fetch: Steps between two fetches.
      n_push: Steps between two pushes.
    """

    n_fetch: int = 1
    n_push: int = 1

    num_servers = 1
    compresses = False

    def player(self, run):
        return _Player(run, self)


class _Player(Player):
    def __init__(self, run, exchange):
        super().__init__(run, exchange)
        self._weights, _, self._slots = run.first
        count = len(self.workers)
        self._seen = [0] * count
        self._own = [self._weights] * count
        self._accrued = [0.0] * count
        self._waiting = [[] for _ in self.workers]

    def seen(self, worker):
        return self._seen[worker]

    def start(self):
        for worker in self.workers:
            self._give(worker)

    def _give(self, worker):
        """The server sends its parameters to a worker, which goes on."""
        self._seen[worker] = self.run.version
        self._own[worker] = self._weights
        arrival = self.run.nodes.send(
            len(self.workers), worker, self.dense_bytes, self.run.now
        )
        self.run.at(arrival, self._go_on, worker)

    def _go_on(self, worker):
        if not self.run.begin(worker, self._own[worker]):
            # Its last steps are pushed as well.
            self._push(worker, fetches=False)

    def step(self, job, gradient):
        worker, number = job.worker, job.step + 1
        self._accrued[worker] = self._accrued[worker] + gradient
        self._waiting[worker].append(job)
        fetches = number % self.exchange.n_fetch == 0
        if number % self.exchange.n_push == 0:
            self._push(worker, fetches)
        elif fetches:
            self._send(worker, 0, self._give, worker)
        if not fetches:
            rate = self.run.model.own_rate
            self._own[worker] = self._own[worker] - rate * gradient
            self._go_on(worker)

    def _push(self, worker, fetches):
        jobs, self._waiting[worker] = self._waiting[worker], []
        total, self._accrued[worker] = self._accrued[worker], 0.0
        if jobs:
            self._send(
                worker, self.dense_bytes, self._apply, jobs, total, fetches
            )

    def _send(self, worker, size, event, *arguments):
        arrival = self.run.nodes.send(
            worker, len(self.workers), size, self.run.now
        )
        self.run.at(arrival, event, *arguments)

    def _apply(self, jobs, total, fetches):
        self._weights, self._slots, _ = self.run.model.apply(
            self._weights, self._slots, total
        )
        version = self.run.version
        self.run.updated()
        for job in jobs:
            job.staleness = version - job.pulled
            self.run.done(job)
        if fetches:
            self._give(jobs[0].worker)

    def center(self):
        return self._weights, self._slots
