"""The verdict: a method and a number of workers, or none, and why.

It knows of speed alone; `learning` trains, and knows how soon a target is
reached.
"""

import dataclasses
import math

from tfdist.simulation import remedies
from tfdist.simulation.prediction import Cluster
from tfdist.simulation.prediction import Prediction
from tfdist.simulation.prediction import queue_speed_up

MIN_SPEED_UP = 1.5
"""The least speed-up that makes a cluster worth its trouble, by default."""

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
"""Least factor of speed by which a change of the cluster is named."""


@dataclasses.dataclass(frozen=True)
class Case:
    """The facts that the rules are asked with.

    Attributes:
      measurement: A `Measurement`.
      cluster: A `Cluster`.
      predictions: List of `Prediction`.
      methods: Dict of their methods' names to `Method`s.
      min_speed_up: What a cluster has to give.
      chosen: The recommended one of the predictions, or None.
      remedies: List of `Remedy`.
      queue_speed_up: How many times as long an epoch of the chosen one takes
        with fixed shares as with portions.
    """

    measurement: object
    cluster: Cluster
    predictions: list
    methods: dict
    min_speed_up: float = MIN_SPEED_UP
    chosen: Prediction | None = None
    remedies: list = dataclasses.field(default_factory=list)
    queue_speed_up: float = 1.0

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
    if case.chosen is not None:
        longer = queue_speed_up(
            case.measurement,
            case.methods[case.chosen.method],
            case.chosen.num_workers,
            case.cluster,
        )
        case = dataclasses.replace(case, queue_speed_up=longer)
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


def sentences(case):
    """The verdict in words: what to use, what bounds it, what would help.

    Args:
      case: A decided `Case`.

    Returns:
      A list of texts.
    """
    first = _staying if case.chosen is None else _recommendation
    texts = (first(case), _reason(case), _shares(case), _changes(case))
    return [text for text in texts if text]


def _recommendation(case):
    """The recommended method, its number of workers, the speed given up."""
    chosen, fastest = case.chosen, case.fastest
    text = (
        f"By speed alone, use {chosen.method} with {_workers(chosen)}: "
        f"{chosen.examples_per_second:,.0f} examples/s, "
        f"{chosen.speed_up:.1f} times one machine's "
        f"{case.measurement.examples_per_second:,.0f}."
    )
    if fastest is not chosen:
        text += (
            f" The fastest is {fastest.method} with {_workers(fastest)} "
            f"({fastest.speed_up:.1f} times). Its gradients are "
            f"{fastest.staleness_mean:.1f} updates late on average; those of "
            f"{chosen.method} with {_workers(chosen)} are "
            f"{chosen.staleness_mean:.1f}."
        )
    return text


def _staying(case):
    """That no method is worth it."""
    best = case.fastest
    return (
        f"Stay on one machine: it trains on "
        f"{case.measurement.examples_per_second:,.0f} examples/s. The most "
        f"that a method gives is {best.speed_up:.2f} times that "
        f"({best.method} with {_workers(best)}), less "
        f"than {case.min_speed_up:g}."
    )


def _reason(case):
    """Says what takes the time of one gradient, so what bounds the rate."""
    row = case.chosen or case.fastest
    push, pull = case.measurement.push_bytes, case.measurement.pull_bytes
    parts = {k: s for k, s in row.parts.items() if s > 1e-9}
    listed = ", ".join(
        f"{name} {_seconds(parts[name])}"
        for name in sorted(parts, key=parts.get, reverse=True)
    )
    return (
        f"It is bound by {row.bound}. Time per gradient: {listed}. A step "
        f"sends {_bytes(push)} and gets {_bytes(pull)}."
    )


def _shares(case):
    """Says how much longer an epoch takes if workers have fixed shares."""
    if case.queue_speed_up < WORTH_A_CHANGE:
        return None
    return (
        "That is while all workers train. With fixed shares, those that are "
        f"done wait for the slowest, and an epoch takes "
        f"{case.queue_speed_up:.1f} times as "
        'long as with portions: pass work="queue".'
    )


def _changes(case):
    """Says what would change the verdict, or make the cluster faster."""
    network = case.cluster.network
    all_links, servers_links = (
        not math.isinf(gbps)
        for gbps in (network.bandwidth_gbps, network.server_gbps)
    )
    if not case.remedies:
        if case.chosen:
            return None
        tried = all_links or servers_links
        faster = "a faster network, " if tried else ""
        return (
            f"Neither a larger batch, {faster}more servers nor more "
            f"workers alone would make it {case.min_speed_up:g} times."
        )
    whose = "servers with " if servers_links and not all_links else ""
    words = {
        "batch_size": "a batch of {:,} per worker (if computing takes longer "
        "in proportion; accuracy may suffer)",
        "bandwidth_gbps": f"{whose}links of {{:g}} Gbit/s",
        "num_servers": "{} servers",
        "num_workers": "{} workers",
    }
    listed = "; ".join(
        f"{words[r.change].format(r.value)}, to {r.prediction.speed_up:.1f}"
        for r in case.remedies
    )
    row = case.chosen or case.largest
    goal = "" if case.chosen else " enough"
    return (
        f"With {row.method} and {_workers(row)}, each of these alone would "
        f"raise the speed-up{goal}: {listed}."
    )


def _workers(prediction):
    number = prediction.num_workers
    return "1 worker" if number == 1 else f"{number} workers"


def _seconds(value):
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def _bytes(number):
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} B"
