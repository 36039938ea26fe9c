"""What is recommended: a method and a number of workers, or none."""

import dataclasses

from tfdist.simulation import remedies
from tfdist.simulation.prediction import Cluster
from tfdist.simulation.prediction import Prediction

MIN_SPEED_UP = 1.5
"""What a cluster has to give to be worth its trouble, by default."""

NEAR = 0.8
"""Part of the fastest method's rate that a fresher method may give."""

_CHANGES_OF_BOUNDS = {
    "servers' links": ("num_servers", "bandwidth_gbps", "batch_size"),
    "servers' work": ("num_servers", "batch_size"),
    "workers' links": ("bandwidth_gbps", "batch_size"),
    "latency": ("batch_size",),
    "overhead": ("batch_size",),
}

WORTH_A_CHANGE = 1.25
"""How many times faster a change of the cluster has to be to be named."""


@dataclasses.dataclass(frozen=True)
class Case:
    """What is known when rules are asked.

    Attributes:
      measurement: A `Measurement`.
      cluster: A `Cluster`.
      predictions: List of `Prediction`.
      methods: Dict of their methods' names to `Method`s.
      min_speed_up: What a cluster has to give.
      chosen: The recommended one of the predictions, or None.
      remedies: List of `Remedy`.
    """

    measurement: object
    cluster: Cluster
    predictions: list
    methods: dict
    min_speed_up: float = MIN_SPEED_UP
    chosen: Prediction | None = None
    remedies: list = dataclasses.field(default_factory=list)

    @property
    def fastest(self):
        """The prediction with the most examples per second."""
        return max(self.predictions, key=lambda p: p.speed_up)

    @property
    def largest(self):
        """The fastest of the predictions with the most workers.

        Where a cluster is not worth it, this is where a change would first
        make it so: with N workers, what they share costs each N times as much
        and is paid back N times.
        """
        return max(self.predictions, key=lambda p: (p.num_workers, p.speed_up))


def decided(case):
    """The `Case` with a choice and remedies."""
    case = dataclasses.replace(
        case, chosen=choose(case.predictions, case.min_speed_up)
    )
    return dataclasses.replace(case, remedies=_remedies(case))


def choose(predictions, min_speed_up):
    """The recommended prediction, or None to stay on one machine.

    None where no method reaches `min_speed_up`. Else the smallest number of
    workers at which some method gives `NEAR` of the fastest of all, and there,
    of the methods that give `NEAR` of its fastest, that with the least stale
    gradients; of equally stale ones that which drops the fewest.

    Args:
      predictions: List of `Prediction`.
      min_speed_up: Number.
    """
    worth = [p for p in predictions if p.speed_up >= min_speed_up]
    if not worth:
        return None
    size = min(p.num_workers for p in _near_the_fastest(worth))
    of_size = [p for p in worth if p.num_workers == size]
    return min(
        _near_the_fastest(of_size),
        key=lambda p: (p.staleness_mean, p.dropped, -p.speed_up),
    )


def _near_the_fastest(predictions):
    fastest = max(p.speed_up for p in predictions)
    return [p for p in predictions if p.speed_up >= NEAR * fastest]


def _remedies(case):
    """Changes that are enough: for a cluster at all, or a faster one."""
    if case.chosen is None:
        base, target = case.largest, case.min_speed_up
        changes = remedies.CHANGES
    else:
        base = case.chosen
        target = WORTH_A_CHANGE * base.speed_up
        changes = _CHANGES_OF_BOUNDS.get(base.bound, ())
    found = [
        remedies.find(
            change,
            case.measurement,
            case.methods[base.method],
            base.num_workers,
            case.cluster,
            target,
        )
        for change in changes
    ]
    return [remedy for remedy in found if remedy is not None]
