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
      overhead_seconds: That an exchange takes a worker beside the network;
        links are free meanwhile. Without servers, each step takes it.

    Raises:
      ValueError: A number is negative, or a bandwidth is 0.
    """

    latency_seconds: float = 0.0
    bandwidth_gbps: float = math.inf
    server_bandwidth_gbps: float | None = None
    server_seconds: float = 0.0
    overhead_seconds: float = 0.0

    def __post_init__(self):
        for name in ("latency_seconds", "server_seconds", "overhead_seconds"):
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

    @property
    def server_gbps(self) -> float:
        """Speed of each server's link, gigabits per second."""
        return self.server_bandwidth_gbps or self.bandwidth_gbps


class Nodes:
    """Workers, then servers, and until when each direction of a link is taken.

    Call `send` in the order of time.

    Args:
      network: A `Network`.
      num_workers: Number of workers.
      num_servers: Number of servers.
      overhead_seconds: Of two messages, beside the network.

    Attributes:
      bytes: `(machines, 2)`, what each has sent and received so far.
    """

    def __init__(
        self, network, num_workers, num_servers=0, overhead_seconds=0.0
    ):
        self._latency = network.latency_seconds + overhead_seconds / 2
        gbps = [network.bandwidth_gbps] * num_workers
        gbps += [network.server_gbps] * num_servers
        self._speeds = [value * 1e9 / 8 for value in gbps]
        self._out, self._in = ([0.0] * len(gbps) for _ in range(2))
        self.bytes = np.zeros([len(gbps), 2])

    def send(self, sender, receiver, num_bytes, now):
        """Sends a message; returns the moment at which it has arrived."""
        self.bytes[sender, 0] += num_bytes
        self.bytes[receiver, 1] += num_bytes
        begins = max(now, self._out[sender])
        seconds = num_bytes / self._speeds[sender]
        self._out[sender] = begins + seconds
        # The first bit arrives after the latency, the last one not before it
        # has been sent.
        first = begins + self._latency
        taken = max(first, self._in[receiver])
        taken += num_bytes / self._speeds[receiver]
        self._in[receiver] = taken
        return max(taken, first + seconds)


class Links:
    """The links of workers to servers, which hold the same parameters.

    Call `push` and `pull` in the order of time.

    Args:
      network: A `Network`.
      num_workers: Number of workers.
      push_bytes: What a push brings to each server, a list of ints.
      pull_bytes: What a pull brings from each server, a list of ints.
      fetch_bytes: What a fetch between two pushes brings from each server, a
        list of ints; default: as a pull.
      is_decided: Whether the first server decides over pushes. Then each other
        one tells it of a push, and hears the decision before it replies.
    """

    def __init__(
        self,
        network,
        num_workers,
        push_bytes,
        pull_bytes,
        fetch_bytes=None,
        is_decided=False,
    ):
        self._network = network
        several = is_decided and len(push_bytes) > 1
        self._to_first = network.latency_seconds if several else 0.0
        self._num_workers = num_workers
        self._push, self._pull = push_bytes, pull_bytes
        self._fetch = pull_bytes if fetch_bytes is None else fetch_bytes
        self._latency = network.latency_seconds + network.overhead_seconds / 2
        self._nodes = Nodes(
            network, num_workers, len(push_bytes), network.overhead_seconds
        )
        # All servers make the same updates.
        self._free = 0.0

    def push(self, worker, now):
        """A worker sends its gradient to all servers; when all have it.

        Where the first one decides, when that knows it of all.
        """
        first = self._num_workers
        return max(
            self._nodes.send(worker, server, num_bytes, now)
            + self._to_first * (server > first)
            for server, num_bytes in enumerate(self._push, first)
        )

    def update(self, now):
        """Servers make an update; who pulls now waits until it is made."""
        begins = max(now, self._free)
        self._free = begins + self._network.server_seconds

    def pull(self, worker, now):
        """All servers send fresh parameters; when the worker has them."""
        return self._bring(self._pull, worker, now, self._to_first)

    def ask(self, now):
        """A worker asks for parameters; when the servers have heard it."""
        return now + self._latency

    def fetch(self, worker, now):
        """As `pull`, of parameters that a worker has asked for."""
        return self._bring(self._fetch, worker, now)

    def _bring(self, sizes, worker, now, from_first=0.0):
        begins, first = max(now, self._free), self._num_workers
        return max(
            self._nodes.send(
                server,
                worker,
                num_bytes,
                begins + from_first * (server > first),
            )
            for server, num_bytes in enumerate(sizes, first)
        )
