"""Workers that send each other updates, as with `PeerToPeerStrategy`."""

import dataclasses

import numpy as np

from tfdist.simulation.codec_runs import DecodedUpdate
from tfdist.simulation.exchange import Player
from tfdist.simulation.exchange import VirtualExchange


@dataclasses.dataclass(frozen=True, repr=False)
class PeerExchange(VirtualExchange):
    """Each worker applies its own encoded update, and sends it to all others.

    As in docs/peers.md: with `w` the parameters before a step of the worker's
    own optimizer, `w'` after it and `lr` its rate, `(w - w') / lr` is encoded,
    and what is decoded is applied, times the rate, by all. Without a codec it
    is `w - w'`, and so it is at rate 0, where the residual stays as it is. A
    step that changes nothing sends nothing. Before its next step a worker
    applies what has arrived; one that has no more data, when it arrives.

    One message at a time is under way from a worker to another. What waits
    meanwhile goes together next, as messages, or as one vector where that has
    fewer bytes. The first replica is evaluated.

    References:
      Strom, "Scalable distributed DNN training using commodity GPU cloud
      computing", Interspeech 2015.
    """

    strategy_among_peers = "PeerToPeerStrategy"

    def player(self, run):
        return _Player(run, self)


class _Lane:
    """The way from one worker to another.

    Args:
      sender: Number of a worker.
      receiver: Number of another.

    Attributes:
      waiting: List of (`DecodedUpdate`, scale) that have not been sent.
      bytes: Of these.
      count: Updates in them.
      is_busy: Whether a message is under way.
    """

    def __init__(self, sender, receiver):
        self.sender, self.receiver = sender, receiver
        self.waiting, self.bytes, self.count = [], 0, 0
        self.is_busy = False

    def put(self, update, scale, dense):
        """Adds an update.

        Args:
          update: An `DecodedUpdate`.
          scale: What it is multiplied by.
          dense: The vector's bytes.
        """
        self.waiting.append((update, scale))
        self.bytes += update.num_bytes
        self.count += 1
        if self.bytes > dense and len(self.waiting) > 1:
            self.waiting = [(_sum(self.waiting, dense), 1.0)]
            self.bytes = dense


def _sum(waiting, dense):
    """One `DecodedUpdate` of several."""
    first, _ = waiting[0]
    dtype = first.values.dtype
    total = np.zeros(dense // dtype.itemsize, dtype)
    for update, scale in waiting:
        update.add_to(total, scale)
    return DecodedUpdate(None, total, dense, total.size)


class _Player(Player):
    def __init__(self, run, exchange):
        super().__init__(run, exchange)
        self._weights = [run.first[0].copy() for _ in self.workers]
        self._lanes = [
            [_Lane(worker, other) for other in self.workers]
            for worker in self.workers
        ]
        # (waiting, count) that have arrived, and are not applied yet.
        self._inboxes = [[] for _ in self.workers]
        self._seen = [0] * len(self.workers)
        self._has_ended = [False] * len(self.workers)
        # Whether those have applied anything since a step was done.
        self._has_changed = False

    def seen(self, worker):
        return self._seen[worker]

    def start(self):
        for worker in self.workers:
            self._next(worker)

    def step(self, job, gradient):
        worker = job.worker
        before = self._weights[worker]
        after, rate = self.step_of(worker, before, gradient)
        update, scale = self._encoded(worker, before - after, rate)
        seconds = self.exchange.encode_seconds
        self.run.at(
            self.run.now + seconds, self._end, job, update, scale, after
        )

    def _encoded(self, worker, change, rate):
        """Returns what is sent, None for nothing, and its scale."""
        if not change.any():
            return None, 0.0
        if self.exchange.compression is None:
            return self.encode(worker, change), -1.0
        if rate:
            return self.encode(worker, change / rate), -float(rate)
        whole = DecodedUpdate(
            None, change, change.nbytes, int(np.count_nonzero(change))
        )
        self.run.count(whole)
        return whole, -1.0

    def _end(self, job, update, scale, after):
        job.staleness = self.run.version - job.pulled
        if update is not None:
            self._send(job.worker, update, scale, after)
        messages = self._receive(job.worker)
        self.run.done(job)
        self._has_changed = False
        self.run.at(
            self.run.now + messages * self.exchange.decode_seconds,
            self._next,
            job.worker,
        )

    def _send(self, worker, update, scale, after):
        number = len(self.workers)
        if self.exchange.compression is None:
            self._weights[worker] = after
        else:
            update.add_to(self._weights[worker], scale)
        self._seen[worker] += 1
        self.run.updated()
        for turn in range(1, number):
            # In another order each, so that nobody is always the last.
            lane = self._lanes[worker][(worker + turn) % number]
            lane.put(update, scale, self.dense_bytes)
            if not lane.is_busy:
                self._ship(lane)

    def _next(self, worker):
        if not self.run.begin(worker, self._weights[worker]):
            self._has_ended[worker] = True
            self._receive_if_ended(worker)

    def _ship(self, lane):
        arrival = self.run.nodes.send(
            lane.sender, lane.receiver, lane.bytes, self.run.now
        )
        self.run.at(arrival, self._arrive, lane, lane.waiting, lane.count)
        lane.waiting, lane.bytes, lane.count = [], 0, 0
        lane.is_busy = True

    def _arrive(self, lane, waiting, count):
        self._inboxes[lane.receiver].append((waiting, count))
        lane.is_busy = False
        self._receive_if_ended(lane.receiver)
        if lane.waiting:
            self._ship(lane)

    def _receive_if_ended(self, worker):
        if self._has_ended[worker] and self._receive(worker):
            self._has_changed = True

    def _receive(self, worker):
        """Applies what has arrived; returns the number of messages."""
        arrived, self._inboxes[worker] = self._inboxes[worker], []
        messages = 0
        for waiting, count in arrived:
            for update, scale in waiting:
                update.add_to(self._weights[worker], scale)
            messages += len(waiting)
            self._seen[worker] += count
        return messages

    def end(self):
        return self._has_changed

    def center(self):
        return self._weights[0], self.slots[0]
