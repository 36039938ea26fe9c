"""Arguments of `simulate` and `timing`, checked."""

import numbers

from tfdist import checks
from tfdist.cluster import member_table
from tfdist.simulation import data as data_lib
from tfdist.simulation.compute import ComputeTime
from tfdist.simulation.compute import Gamma
from tfdist.simulation.failures import Failure
from tfdist.simulation.network import Network
from tfdist.simulation.queued_shares import QueuedShares
from tfdist.strategies import construction


def shares(
    num_batches,
    epochs,
    num_workers,
    method,
    work,
    portions_per_worker,
    dynamic=False,
):
    """Returns who computes which batch, a `Shares` or a `QueuedShares`.

    Args:
      num_batches: Batches of an epoch.
      epochs: Number of epochs.
      num_workers: Number of workers.
      method: A `Method`, resolved.
      work: As of `simulate`.
      portions_per_worker: As of `simulate`.
      dynamic: The argument `dynamic_shares` of `timing`.

    Raises:
      ValueError: The method has no portions, or there are dynamic shares.
    """
    portions = construction.portions(method, "chief", work, portions_per_worker)
    if portions is None:
        return data_lib.Shares(num_batches, epochs, num_workers, dynamic)
    if dynamic:
        raise ValueError(
            'Argument `dynamic_shares` must be False with work="queue". '
            "Received: dynamic_shares=True"
        )
    return QueuedShares(num_batches, epochs, num_workers, portions)


def refuse_all_but(method, **arguments):
    """Refuses arguments that mean nothing with a method.

    Args:
      method: The method, in words.
      **arguments: By name what was received, and what alone is allowed.

    Raises:
      ValueError: One is another; the message names it.
    """
    for name, (value, allowed) in arguments.items():
        if value != allowed:
            raise ValueError(
                f"Argument `{name}` must be {allowed!r} with {method}. "
                f"Received: {name}={value!r}"
            )


def check_exchange(num_servers, failures, work):
    """Refuses arguments that mean nothing without servers; see `simulate`."""
    refuse_all_but(
        "peer_to_peer, gossip and exchanges",
        num_servers=(num_servers, 1),
        failures=(list(failures), []),
        work=(work, "shares"),
    )


def cluster(compute, network, failures, seed, worker_timeout, start_timeout):
    """The arguments of a `Schedule` that describe the cluster, checked."""
    seed = checks.count("seed", seed, least=0)
    least = 2 * member_table.HEARTBEAT_SECONDS
    checks.number(
        "worker_timeout",
        worker_timeout,
        lambda value: value > least,
        f"above {least:g}, two heartbeats",
    )
    checks.positive("start_timeout", start_timeout)
    return {
        "compute": checks.kind("compute", compute, ComputeTime, Gamma(0.1)),
        "network": checks.kind("network", network, Network, Network()),
        "failures": checks.several("failures", failures, Failure),
        "seed": seed,
        "worker_timeout": worker_timeout,
        "start_timeout": start_timeout,
    }


def without_start(cluster):
    """The arguments of a cluster, of which no worker is late to begin."""
    return {k: v for k, v in cluster.items() if k != "start_timeout"}


def by_server(name, sizes, num_servers):
    """Bytes of each server, a list."""
    if isinstance(sizes, numbers.Real):
        sizes = [sizes / num_servers] * num_servers
    if len(sizes) != num_servers:
        raise ValueError(
            f"Argument `{name}` must be a number or a list of {num_servers}, "
            f"the number of servers. Received: {name}={sizes!r}"
        )
    for size in sizes:
        checks.not_negative(name, size)
    return list(sizes)
