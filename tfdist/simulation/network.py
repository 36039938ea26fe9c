"""Travel times of gradients and parameters."""

import dataclasses
import math

import numpy as np

from tfdist import checks


@dataclasses.dataclass(frozen=True)
class Network:
    """Links of workers and servers; each carries both directions at once.

    A message leaves its sender when the messages before it have left, takes
    `latency_seconds`, and has arrived when the receiver has taken in those
    that came before. So N workers that push to one server at once wait for
    each other there: the server's link is the bottleneck.

    Attributes:
      latency_seconds: Of each message, one way.
      bandwidth_gbps: Of each worker's link, gigabits per second.
      server_bandwidth_gbps: Of each server's link; None: as the workers'.
      server_seconds: That a server takes for each update, one after the
        other, before it gives anybody the new parameters.

    Raises:
      ValueError: A number is negative, or a bandwidth is 0.
    """

    latency_seconds: float = 0.0
    bandwidth_gbps: float = math.inf
    server_bandwidth_gbps: float | None = None
    server_seconds: float = 0.0

    def __post_init__(self):
        for name in ("latency_seconds", "server_seconds"):
            checks.not_negative(f"Network: {name}", getattr(self, name))
        for name in ("bandwidth_gbps", "server_bandwidth_gbps"):
            value = getattr(self, name)
            if value is None and name.startswith("server"):
                continue
            if not checks.is_number(value) or not value > 0:
                raise ValueError(
                    f"Argument `{name}` of Network must be a number, "
                    f"positive. Received: {name}={value!r}"
                )


class Links:
    """The links of one cluster, and until when each is taken.

    Call `push` and `pull` in the order of time.

    Args:
      network: A `Network`.
      num_workers: Number of workers.
      push_bytes: What a push brings to each server, a list of ints.
      pull_bytes: What a pull brings from each server, a list of ints.
      fetch_bytes: What a fetch between two pushes brings from each server, a
        list of ints; default: as a pull.
    """

    def __init__(
        self, network, num_workers, push_bytes, pull_bytes, fetch_bytes=None
    ):
        self._network = network
        worker = network.bandwidth_gbps * 1e9 / 8
        server = worker
        if network.server_bandwidth_gbps is not None:
            server = network.server_bandwidth_gbps * 1e9 / 8
        self._push = [(b / worker, b / server) for b in push_bytes]
        self._pull = [(b / worker, b / server) for b in pull_bytes]
        fetch_bytes = pull_bytes if fetch_bytes is None else fetch_bytes
        self._fetch = [(b / worker, b / server) for b in fetch_bytes]
        servers = len(push_bytes)
        # Each link has two directions, and each server computes.
        self._up, self._down = ([0.0] * num_workers for _ in range(2))
        self._in, self._out = ([0.0] * servers for _ in range(2))
        # All servers make the same updates.
        self._free = 0.0

    def push(self, worker, now):
        """A worker sends its gradient to all servers; when all have it."""
        return max(
            send(
                (self._up, worker, slow),
                (self._in, server, fast),
                self._network.latency_seconds,
                now,
            )
            for server, (slow, fast) in enumerate(self._push)
        )

    def update(self, now):
        """Servers make an update; who pulls now waits until it is made."""
        begins = max(now, self._free)
        self._free = begins + self._network.server_seconds

    def pull(self, worker, now):
        """All servers send fresh parameters; when the worker has them."""
        return self._bring(self._pull, worker, now)

    def ask(self, now):
        """A worker asks for parameters; when the servers have heard it."""
        return now + self._network.latency_seconds

    def fetch(self, worker, now):
        """As `pull`, of parameters that a worker has asked for."""
        return self._bring(self._fetch, worker, now)

    def _bring(self, sizes, worker, now):
        arrivals = []
        for server, (slow, fast) in enumerate(sizes):
            arrivals.append(
                send(
                    (self._out, server, fast),
                    (self._down, worker, slow),
                    self._network.latency_seconds,
                    max(now, self._free),
                )
            )
        return max(arrivals)


class Nodes:
    """Machines with a link each, and until when each direction is taken.

    Args:
      network: A `Network`; its latency counts.
      gbps: Speed of each machine's link, gigabits per second, a list.

    Attributes:
      bytes: `(machines, 2)`, what each has sent and received so far.
    """

    def __init__(self, network, gbps):
        self._latency = network.latency_seconds
        self._speeds = [value * 1e9 / 8 for value in gbps]
        self._out, self._in = ([0.0] * len(gbps) for _ in range(2))
        self.bytes = np.zeros([len(gbps), 2])

    def send(self, sender, receiver, num_bytes, now):
        """Sends a message; returns the moment at which it has arrived."""
        self.bytes[sender, 0] += num_bytes
        self.bytes[receiver, 1] += num_bytes
        return send(
            (self._out, sender, num_bytes / self._speeds[sender]),
            (self._in, receiver, num_bytes / self._speeds[receiver]),
            self._latency,
            now,
        )


def send(sender, receiver, latency, now):
    """Sends a message over two links; returns when it has arrived.

    Args:
      sender: Triple of a list of when links are free, whose link it is, and
        the seconds that the message takes it.
      receiver: The same.
      latency: Seconds.
      now: Seconds.
    """
    links, number, seconds = sender
    begins = max(now, links[number])
    links[number] = begins + seconds
    links, number, taking = receiver
    # The first bit arrives after the latency, the last one not before it has
    # been sent.
    first = begins + latency
    last = first + seconds
    links[number] = max(first, links[number]) + taking
    return max(links[number], last)
