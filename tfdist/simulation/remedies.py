"""Changes that would make a cluster faster, each tried by itself."""

import bisect
import dataclasses
import math

from tfdist.simulation.compute import ComputeTime
from tfdist.simulation.compute import SlowWorkers
from tfdist.simulation.prediction import Prediction
from tfdist.simulation.prediction import predict

CHANGES = ("batch_size", "bandwidth_gbps", "num_servers", "num_workers")

_MOST_DOUBLINGS = 10
_MOST_SERVERS = 64
_MOST_WORKERS = 32


@dataclasses.dataclass(frozen=True)
class Remedy:
    """A change that would help, and what it would give.

    Attributes:
      change: What is changed, one of `CHANGES`.
      value: The smallest value found that is enough.
      prediction: A `Prediction`.
    """

    change: str
    value: float
    prediction: Prediction


def find(change, measurement, method, num_workers, cluster, target):
    """The smallest change, by a power of two, that is enough.

    Args:
      change: One of `CHANGES`. "batch_size" is that of a worker, and computing
        is taken to grow with it; "bandwidth_gbps" that of all links, and
        more servers share an update out over them.
      measurement: A `Measurement`.
      method: A `Method`.
      num_workers: Number of workers.
      cluster: A `Cluster`.
      target: Times the rate of one machine that are wanted.

    Returns:
      A `Remedy`, None if none was found.
    """
    network = cluster.network
    most = {
        "num_servers": _doublings(cluster.num_servers, _MOST_SERVERS),
        "num_workers": _doublings(num_workers, _MOST_WORKERS),
    }.get(change, _MOST_DOUBLINGS)
    links = min(network.bandwidth_gbps, network.server_gbps)
    if change == "bandwidth_gbps" and math.isinf(links):
        return None

    def changed(power):
        factor = 2**power
        measured, changing, workers = measurement, cluster, num_workers
        if change == "batch_size":
            measured = measurement.scaled(factor)
            value = measured.batch_size
            if isinstance(cluster.compute, ComputeTime):
                longer = dict.fromkeys(range(num_workers), factor)
                changing = dataclasses.replace(
                    cluster, compute=SlowWorkers(cluster.compute, longer)
                )
        elif change == "bandwidth_gbps":
            of_workers = factor * network.bandwidth_gbps
            of_servers = network.server_bandwidth_gbps
            # Links without a limit are not what lacks.
            value = factor * links if math.isinf(of_workers) else of_workers
            faster = dataclasses.replace(
                network,
                bandwidth_gbps=of_workers,
                server_bandwidth_gbps=of_servers and factor * of_servers,
            )
            changing = dataclasses.replace(cluster, network=faster)
        elif change == "num_servers":
            value = factor * cluster.num_servers
            shared = dataclasses.replace(
                network, server_seconds=network.server_seconds / factor
            )
            changing = dataclasses.replace(
                cluster, num_servers=value, network=shared
            )
        else:
            value = workers = factor * num_workers
        played = predict(measured, method, workers, changing)
        return Remedy(change, value, played)

    def enough(remedy):
        return remedy.prediction.speed_up >= target

    powers = range(1, most + 1)
    if change == "num_workers":
        # Too many may be slower than some: from few to more.
        power = next((p for p in powers if enough(changed(p))), most + 1)
    else:
        power = 1 + bisect.bisect_left(
            powers, True, key=lambda power: enough(changed(power))
        )
    return changed(power) if power <= most else None


def _doublings(number, most):
    """Doublings of a number until it is more than `most`."""
    return max(0, (most // number).bit_length() - 1)
