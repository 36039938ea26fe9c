"""Asynchronous SGD with one server, to which encoded gradients are pushed."""

import dataclasses

import numpy as np

from tfdist.simulation.exchange import Player
from tfdist.simulation.exchange import VirtualExchange


@dataclasses.dataclass(frozen=True, repr=False)
class ServerExchange(VirtualExchange):
    """Workers push encoded gradients to one server, and pull all parameters.

    The server decodes each gradient and makes a step of its optimizer. What
    workers pull is not compressed. Of `Network`, `server_bandwidth_gbps` and
    `server_seconds` are the server's.
    """

    num_servers = 1

    def player(self, run):
        return _Player(run, self)


class _Player(Player):
    def __init__(self, run, exchange):
        super().__init__(run, exchange)
        self._weights, _, self._slots = run.first
        self._seen = [0] * len(self.workers)
        # When the server has made the updates that it has begun.
        self._free = 0.0

    def seen(self, worker):
        return self._seen[worker]

    def start(self):
        for worker in self.workers:
            self._pull(worker)

    def _pull(self, worker):
        self._seen[worker] = self.run.version
        arrival = self.run.nodes.send(
            len(self.workers), worker, self.dense_bytes, self.run.now
        )
        self.run.at(arrival, self.run.begin, worker, self._weights)

    def step(self, job, gradient):
        update = self.encode(job.worker, gradient)
        begins = self.run.now + self.exchange.encode_seconds
        self.run.at(begins, self._push, job, update)

    def _push(self, job, update):
        arrival = self.run.nodes.send(
            job.worker, len(self.workers), update.num_bytes, self.run.now
        )
        self.run.at(arrival, self._arrived, job, update)

    def _arrived(self, job, update):
        seconds = self.exchange.decode_seconds + self.run.network.server_seconds
        self._free = max(self._free, self.run.now) + seconds
        self.run.at(self._free, self._apply, job, update, self.run.now)

    def _apply(self, job, update, arrived):
        gradient = update.values
        if update.indices is not None:
            gradient = np.zeros_like(self._weights)
            update.add_to(gradient, 1.0)
        self._weights, self._slots, _ = self.run.model.apply(
            self._weights, self._slots, gradient
        )
        job.staleness = self.run.version - job.pulled
        self.run.updated()
        self.run.done(job, arrived=arrived)
        self._pull(job.worker)

    def center(self):
        return self._weights, self._slots
