"""Prediction of one method's throughput on one cluster, in the long run."""

import dataclasses

import numpy as np

from tfdist.simulation.compute import ComputeTime
from tfdist.simulation.compute import Recorded
from tfdist.simulation.methods import as_method
from tfdist.simulation.network import Network
from tfdist.simulation.simulate import timing

# Part of the gradients that are not counted: all workers begin at once, and
# it takes some steps until they come as they will go on to come.
_WARM_UP = 0.2

BOUNDS = (
    "compute",
    "stragglers",
    "servers' links",
    "workers' links",
    "latency",
    "overhead",
    "servers' work",
)
"""Resources that can bound a cluster; of equal ones the first is named."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster without its workers' number.

    Attributes:
      num_servers: Number of servers.
      network: A `Network`. Where its `server_seconds` is 0, the measured
        update stands for it, shared out evenly over the servers.
      compute: A `ComputeTime`; None for what was measured; or a callable that
        is given what was measured, a `Recorded`, and returns a `ComputeTime`.
      overhead_seconds: That an exchange takes a worker beside all this.
      steps: Gradients of each worker that are played.
      seed: Of compute times.
    """

    num_servers: int = 1
    network: Network = dataclasses.field(default_factory=Network)
    compute: object = None
    overhead_seconds: float = 0.0
    steps: int = 60
    seed: int = 0

    def compute_time(self, measurement):
        """The `ComputeTime` of the workers."""
        if isinstance(self.compute, ComputeTime):
            return self.compute
        measured = Recorded([measurement.compute_seconds])
        if self.compute is None:
            return measured
        made = self.compute(measured)
        if not isinstance(made, ComputeTime):
            raise TypeError(
                "Argument `compute` must be a tfdist.simulation.ComputeTime, "
                f"or return one. Received: compute={made!r}"
            )
        return made

    def full_network(self, measurement):
        """The `Network`, with the servers' own work and the overhead."""
        network = self.network
        return dataclasses.replace(
            network,
            overhead_seconds=network.overhead_seconds + self.overhead_seconds,
            server_seconds=network.server_seconds
            or measurement.update_seconds / self.num_servers,
        )


@dataclasses.dataclass(frozen=True)
class Prediction:
    """One method on one cluster, while all workers train.

    Attributes:
      method: Its name.
      num_workers: Number of workers.
      examples_per_second: Of gradients that became part of an update.
      speed_up: Times the examples per second of one machine.
      updates_per_second: Updates of the parameters.
      staleness_mean: Updates by which a gradient is late.
      staleness_p95: The same, the 95th percentile.
      computing: Share of the workers' time in which they compute.
      waiting: In which they wait for others.
      communicating: In which they wait for messages.
      dropped: Share of the gradients that are dropped.
      server_gbps: Gigabits per second at the busiest server, in the busier
        direction.
      bound: What bounds it, one of `BOUNDS`.
      parts: Dict of `BOUNDS` to the seconds per gradient of a worker that
        each takes by itself.
    """

    method: str
    num_workers: int
    examples_per_second: float
    speed_up: float
    updates_per_second: float
    staleness_mean: float
    staleness_p95: float
    computing: float
    waiting: float
    communicating: float
    dropped: float
    server_gbps: float
    bound: str
    parts: dict

    def as_dict(self):
        """Its figures, as JSON can hold them."""
        return dataclasses.asdict(self)


def predict(measurement, strategy, num_workers, cluster):
    """Plays a cluster and counts.

    Args:
      measurement: A `Measurement`.
      strategy: As for `simulate`.
      num_workers: Number of workers.
      cluster: A `Cluster`.

    Returns:
      A `Prediction`.

    Raises:
      ValueError: The method does not fit so many workers, or has local steps.
    """
    method = as_method(strategy).resolve(num_workers)
    check_is_predicted(method)
    network = cluster.full_network(measurement)
    push, pull = measurement.traffic(method, cluster.num_servers)
    # Whoever is done takes the next batch, so that the rate is that of a
    # cluster in which all are training.
    history = _played(
        measurement, method, num_workers, cluster, dynamic_shares=True
    )
    begin, end = _window(history)
    jobs = history.jobs
    jobs = jobs[(jobs["decided"] > begin) & (jobs["decided"] <= end)]
    counted = jobs[jobs["accepted"]]
    updates = history.update_seconds
    updates = np.count_nonzero((updates > begin) & (updates <= end))
    computing = jobs["computed"] - jobs["began"]
    waiting = jobs["decided"] - jobs["arrived"]
    whole = jobs["decided"] - jobs["pulling"]
    examples = len(counted) * measurement.batch_size / (end - begin)
    parts = _parts(num_workers, network, push, pull, computing, waiting)
    if method.needs_order and cluster.num_servers > 1:
        # Servers tell the first one of a push, and hear what it decides.
        parts["latency"] += 2 * cluster.network.latency_seconds
    parts["servers' work"] *= updates / len(jobs)
    most_bytes = max(max(push), max(pull))
    return Prediction(
        method=method.name,
        num_workers=num_workers,
        examples_per_second=float(examples),
        speed_up=float(examples / measurement.examples_per_second),
        updates_per_second=float(updates / (end - begin)),
        staleness_mean=float(counted["staleness"].mean()),
        staleness_p95=float(np.percentile(counted["staleness"], 95)),
        computing=float(computing.sum() / whole.sum()),
        waiting=float(waiting.sum() / whole.sum()),
        communicating=float(
            1 - (computing.sum() + waiting.sum()) / whole.sum()
        ),
        dropped=1 - len(counted) / len(jobs),
        server_gbps=float(8e-9 * most_bytes * len(jobs) / (end - begin)),
        bound=max(BOUNDS, key=parts.get),
        parts=parts,
    )


def _played(measurement, method, num_workers, cluster, **shares):
    push, pull = measurement.traffic(method, cluster.num_servers)
    return timing(
        method,
        num_workers=num_workers,
        steps=cluster.steps * num_workers,
        push_bytes=[size / method.copies_per_push for size in push],
        pull_bytes=pull,
        num_servers=cluster.num_servers,
        batch_size=measurement.batch_size,
        compute=cluster.compute_time(measurement),
        network=cluster.full_network(measurement),
        seed=cluster.seed,
        **shares,
    )


def queue_speed_up(measurement, method, num_workers, cluster):
    """Returns the time of an epoch with fixed shares over that with portions.

    Args:
      measurement: A `Measurement`.
      method: A `Method` that `predict` accepts.
      num_workers: Number of workers.
      cluster: A `Cluster`, whose `steps` are a worker's share.

    Returns:
      Their ratio; 1 for methods without portions (`work="queue"`).
    """
    if method.waits or num_workers == 1:
        return 1.0
    shares, portions = (
        _played(
            measurement,
            method.resolve(num_workers),
            num_workers,
            cluster,
            work=work,
        )
        for work in ("shares", "queue")
    )
    return shares.seconds / portions.seconds


def check_is_predicted(method):
    """Refuses methods of which nothing is predicted.

    Args:
      method: A `Method`.

    Raises:
      ValueError: It has local steps.
    """
    if method.local_steps is not None:
        raise ValueError(
            f"{method.name!r} has local steps between exchanges, of which "
            "rates are not predicted: `simulate` and `timing` play them."
        )


def _window(history):
    """Begin and end of the time that counts.

    It begins and ends with a decision, and what was decided at its beginning
    is not counted. So methods that decide over many gradients at once are
    counted by whole rounds.
    """
    decided = np.sort(history.jobs["decided"])
    decided = decided[~np.isnan(decided)]
    begin = decided[int(_WARM_UP * len(decided))]
    # When the last batch was taken: nobody has been without one before.
    end = history.jobs["pulling"].max()
    return (begin, end) if begin < end else (0.0, decided[-1])


def _parts(num_workers, network, push, pull, computing, waiting):
    """Seconds per gradient of a worker, by what takes them.

    What workers share is counted as many times as there are workers: so long
    it is busy between two gradients of one worker.
    """
    typical = float(np.median(computing))
    worker = network.bandwidth_gbps * 1e9 / 8
    server = network.server_gbps * 1e9 / 8
    # Both directions are busy at once: also where all have to wait for all,
    # as parameters reach them one after the other.
    busiest = max(*push, *pull)
    return {
        "compute": typical,
        "stragglers": float(computing.mean() + waiting.mean()) - typical,
        "servers' links": num_workers * busiest / server,
        "workers' links": (sum(push) + sum(pull)) / worker,
        "latency": 2 * network.latency_seconds,
        "overhead": network.overhead_seconds,
        "servers' work": num_workers * network.server_seconds,
    }
