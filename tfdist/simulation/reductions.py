"""Times of one sum over all workers, by topology, on a `Network`.

Every worker holds a vector of M bytes, and all have the sum when it is over.
Messages are played one by one: each link carries both directions at once, and
one message at a time in each. Adding costs nothing.
"""

import itertools

from tfdist import checks
from tfdist.simulation.network import Nodes


def servers(network, num_workers, num_bytes, num_servers=1, pieces=1):
    """Seconds of a sum on servers, which share the vector out evenly.

    A piece goes back as soon as it is summed up, while the next one comes: so
    BytePS uses both directions of a link (Jiang et al., OSDI 2020).

    Args:
      network: A `Network`; `server_seconds` passes once per piece.
      num_workers: int.
      num_bytes: Of the vector.
      num_servers: int; machines beside the workers.
      pieces: Of each server's share, int.
    """
    _check(num_workers, num_bytes)
    checks.count("num_servers", num_servers)
    checks.count("pieces", pieces)
    workers = range(num_workers)
    nodes = Nodes(network, num_workers, num_servers)
    share = num_bytes / num_servers
    arrived = {}
    for piece, turn, worker in itertools.product(
        range(pieces), range(num_servers), workers
    ):
        # In another order each, so that no server waits.
        server = (worker + turn) % num_servers
        arrived[piece, server, worker] = nodes.send(
            worker, num_workers + server, share / pieces, 0.0
        )
    ended, free = 0.0, [0.0] * num_servers
    summed = {}
    for piece in range(pieces):
        for server in range(num_servers):
            last = max(arrived[piece, server, worker] for worker in workers)
            free[server] = max(last, free[server]) + network.server_seconds
            summed[piece, server] = free[server]
    for piece, turn, server in itertools.product(
        range(pieces), workers, range(num_servers)
    ):
        # Likewise: no two servers begin with the same worker.
        worker = (server * num_workers // num_servers + turn) % num_workers
        last = nodes.send(
            num_workers + server, worker, share / pieces, summed[piece, server]
        )
        ended = max(ended, last)
    return ended


def ring(network, num_workers, num_bytes):
    """Seconds of a ring: a share goes round twice, added up, then as the sum.

    Args:
      network: A `Network`.
      num_workers: int.
      num_bytes: Of the vector.
    """
    _check(num_workers, num_bytes)
    return _rounds(
        network,
        num_workers,
        [(num_bytes / num_workers, lambda worker: worker + 1)]
        * (2 * (num_workers - 1)),
    )


def tree(network, num_workers, num_bytes):
    """Seconds of a binomial tree: whole vectors go up to the root, and down.

    The reduction tree of FireCaffe (Iandola et al., CVPR 2016).

    Args:
      network: A `Network`.
      num_workers: int.
      num_bytes: Of the vector.
    """
    _check(num_workers, num_bytes)
    nodes = Nodes(network, num_workers)
    ready = [0.0] * num_workers
    distances = [1 << k for k in range((num_workers - 1).bit_length())]
    for up, steps in ((True, distances), (False, distances[::-1])):
        for distance in steps:
            for root in range(0, num_workers - distance, 2 * distance):
                ends = root + distance, root
                sender, receiver = ends if up else ends[::-1]
                arrived = nodes.send(sender, receiver, num_bytes, ready[sender])
                ready[receiver] = max(ready[receiver], arrived)
    return max(ready)


def halving_and_doubling(network, num_workers, num_bytes):
    """Seconds of exchanges of halves with partners ever further away.

    As many messages as the tree sends one after the other, as few bytes as
    the ring (Thakur, Rabenseifner and Gropp 2005).

    Args:
      network: A `Network`.
      num_workers: int, a power of 2.
      num_bytes: Of the vector.

    Raises:
      ValueError: The workers are no power of 2.
    """
    _check(num_workers, num_bytes)
    if num_workers & (num_workers - 1):
        raise ValueError(
            "Argument `num_workers` of halving_and_doubling must be a power "
            f"of 2. Received: num_workers={num_workers!r}"
        )
    rounds = [
        (num_bytes / (2 << k), lambda worker, k=k: worker ^ (1 << k))
        for k in range(num_workers.bit_length() - 1)
    ]
    return _rounds(network, num_workers, rounds + rounds[::-1])


def _rounds(network, num_workers, rounds):
    """Seconds of rounds in each of which every worker sends one message.

    Args:
      network: A `Network`.
      num_workers: int.
      rounds: List of pairs: bytes, and a function of the sender that gives the
        receiver, modulo the number of workers.
    """
    nodes = Nodes(network, num_workers)
    ready = [0.0] * num_workers
    for num_bytes, receiver_of in rounds:
        arrived = list(ready)
        for worker in range(num_workers):
            receiver = receiver_of(worker) % num_workers
            last = nodes.send(worker, receiver, num_bytes, ready[worker])
            arrived[receiver] = max(arrived[receiver], last)
        ready = arrived
    return max(ready)


def _check(num_workers, num_bytes):
    checks.count("num_workers", num_workers)
    checks.not_negative("num_bytes", num_bytes)
