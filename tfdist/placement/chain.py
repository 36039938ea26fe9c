"""Contiguous stages by dynamic programming, exact.

PipeDream's partitioner (Narayanan et al., SOSP 2019, section 3.1), with the
memory of each stage as it is: layers in their order are cut into stages, the
first on the first devices. With `A(i, m)` for layers i to the last on m
devices, from the last stage to the first, as only so it is known how many
micro-batches a stage has in flight:

    A(i, m) = min over j, r of max(T(i..j, r), 2 C_j, A(j + 1, m - r))
    T(i..j, 1) = sum of t
    T(i..j, r) = (ceil(M / r) (sum of t) + W) / M,   W = 2 (r - 1) |w| / (r B)

with `C_j` the transfer over the cut behind layer j, `2 C_j` it and that of its
gradient, r the replicas of a stage, and W the all-reduce of its gradients over
a ring (each of its 2 (r - 1) steps has the link's latency too). PipeDream's
replicas sum the gradients of each micro-batch. Those here take the M
micro-batches of a batch in turn and sum once, after the last: only the
schedules that update once per batch can have replicas (`pipeline.pipelined`).
"""

import dataclasses
import math

import numpy as np

from tfdist import checks
from tfdist.placement.memory import PlacementError

OBJECTIVES = ("step", "throughput")
# They empty the pipeline (flush) and update once per batch.
SYNCHRONOUS = ("gpipe", "1f1b")
# They never do; they differ in the weights that tasks use.
ASYNCHRONOUS = ("pipedream", "pipedream_2bw", "spectrain", "ftpipe")
SCHEDULES = (*SYNCHRONOUS, *ASYNCHRONOUS)

_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The settings of a pipeline that decide how much memory a stage takes.

    Attributes:
      schedule: "gpipe" keeps all micro-batches in flight in each stage, the
        others as many as stages are left, itself among them. "pipedream"
        keeps the weights of each that is in flight, "pipedream_2bw" two.
      micro_batches: Of one mini-batch; None (not with "gpipe"): no end.
      recompute: Whether a stage keeps only what came to it, and computes the
        forward pass again before the backward pass.
      max_replicas: Devices that may share one stage, with "gpipe" and "1f1b";
        no more than there are micro-batches do.

    Raises:
      ValueError: An argument is not allowed.
    """

    schedule: str = "1f1b"
    micro_batches: int | None = None
    recompute: bool = False
    max_replicas: int = 1

    def __post_init__(self):
        checks.one_of("Pipeline: schedule", self.schedule, SCHEDULES)
        if self.schedule == "gpipe" and self.micro_batches is None:
            raise ValueError(
                "Argument `micro_batches` of Pipeline must be given with "
                "'gpipe', which keeps all of them. Received: "
                "micro_batches=None"
            )
        if self.micro_batches is not None:
            self._count("micro_batches")
        self._count("max_replicas")
        recompute = checks.flag("Pipeline: recompute", self.recompute)
        object.__setattr__(self, "recompute", recompute)
        if self.max_replicas > 1:
            self._check_replicas()

    def _count(self, name):
        value = checks.count(f"Pipeline: {name}", getattr(self, name))
        object.__setattr__(self, name, value)

    def _check_replicas(self):
        if self.schedule not in SYNCHRONOUS:
            raise ValueError(
                "Argument `max_replicas` of Pipeline must be 1 with "
                f"{self.schedule!r}: only the schedules "
                f"{' and '.join(SYNCHRONOUS)} can have replicas. Received: "
                f"max_replicas={self.max_replicas!r}"
            )
        if self.micro_batches is None:
            raise ValueError(
                "Argument `micro_batches` of Pipeline must be given with "
                f"max_replicas={self.max_replicas}: replicas sum their "
                "gradients once for so many. Received: micro_batches=None"
            )

    def in_flight(self, devices: int, replicas: int) -> int:
        """Micro-batches that each replica of a stage holds at most.

        Args:
          devices: Of this stage and all behind it.
          replicas: Of this stage.

        Returns:
          An int; `P - s` for stage s of P without replicas.
        """
        ends = [] if self.schedule == "gpipe" else [devices]
        if self.micro_batches is not None:
            ends.append(self.micro_batches)
        return math.ceil(min(ends) / replicas)

    def more_weights(self, in_flight: int) -> int:
        """Copies of the weights beyond the first, an int."""
        stashed = {"pipedream": in_flight, "pipedream_2bw": 2}
        return stashed.get(self.schedule, 1) - 1


@dataclasses.dataclass(frozen=True)
class ChainStage:
    """Consecutive nodes on one device, or on several replicas.

    Attributes:
      nodes: Their names.
      devices: Names of the devices.
      seconds: Per micro-batch, `T` above: of a batch, its share.
      transfer_seconds: Over the cut behind it and back; 0 for the last.
      bytes: That each of its devices holds at most.
      in_flight: Micro-batches of which it holds activations.
    """

    nodes: tuple[str, ...]
    devices: tuple[str, ...]
    seconds: float
    transfer_seconds: float
    bytes: int
    in_flight: int


@dataclasses.dataclass(frozen=True)
class Stages:
    """A partition into stages.

    Attributes:
      stages: Of `ChainStage`, the first first.
      objective: "throughput" or "step".
      seconds: What was minimised: of the slowest stage or cut, or of the sum
        of all.
    """

    stages: tuple[ChainStage, ...]
    objective: str
    seconds: float

    @property
    def placement(self):
        """Device of the name of each node, a dict; of its first replica."""
        return {
            name: stage.devices[0]
            for stage in self.stages
            for name in stage.nodes
        }


def partition_chain(graph, devices, objective="throughput", pipeline=None):
    """Cuts a chain into stages, the best there are.

    Of a graph that is no chain, nodes are taken in their topological order;
    what crosses several cuts is counted as handed on from stage to stage and
    held in each. A pipeline sends it straight to the stage that takes it,
    where it waits: with all schedules but "gpipe", stage s may hold `s - r`
    micro-batches more of a tensor of stage r than its `bytes` say.

    Devices are used in their order, and not all if fewer are better or as
    good. A group that must be together keeps all that is between its
    members in one stage.

    Args:
      graph: A `CostGraph`.
      devices: A `Devices`. Replicas of a stage are neighbours there.
      objective: "throughput": the slowest stage or cut, which bounds what a
        full pipeline does; "step": the sum of all, how long one batch takes
        if stages wait for each other.
      pipeline: A `Pipeline`; None: one micro-batch at a time.

    Returns:
      `ChainStages`.

    Raises:
      ValueError: `objective` is not known, or "step" with a pipeline.
      PlacementError: No cut into contiguous stages fits the memory.
    """
    checks.one_of("objective", objective, OBJECTIVES)
    if objective == "step" and pipeline is not None:
        raise ValueError(
            "Argument `objective` must be 'throughput' with a pipeline. "
            f"Received: objective={objective!r}"
        )
    pipeline = pipeline or Pipeline(micro_batches=1)
    costs = _Costs(graph, devices, pipeline)
    add = np.add if objective == "step" else np.maximum
    seconds, found = _solve(
        costs, lambda *args: costs.fitting_seconds(*args, add), 0.0
    )
    if found is None:
        raise PlacementError(_shortfall(costs))
    return Stages(
        tuple(costs.stage(*stage) for stage in found),
        objective,
        float(seconds),
    )


class _Costs:
    """Tables over (i, j): of a stage of layers i to j - 1, columns j >= 1."""

    def __init__(self, graph, devices, pipeline):
        self.devices = devices
        self.pipeline = pipeline
        self.size = size = len(graph.nodes)
        nodes = [graph.nodes[number] for number in graph.order]
        self._names = [node.name for node in nodes]
        again = [n.forward_seconds * pipeline.recompute for n in nodes]
        both = [n.seconds + a for n, a in zip(nodes, again, strict=True)]
        self._seconds = _between(both, float)
        self._resident = _between([n.resident_bytes for n in nodes], np.int64)
        self._kept = _between([n.activation_bytes for n in nodes], np.int64)
        self._weights = _between([n.weight_bytes for n in nodes], np.int64)
        self._possible = np.triu(np.ones((size, size), bool))
        received, seconds = cuts(graph, devices)
        self._received = np.asarray(received[:-1], np.int64)[:, None]
        self._cuts = np.asarray(seconds)[1:]
        # Nothing behind the last layer is sent.
        self._cuts[-1] = 0.0

    def fitting_seconds(self, first, in_use, replicas, behind, add):
        """Objective of all from layer i on, infinite where it does not fit."""
        chosen = range(first, first + replicas)
        limit = min(self.devices.limit(number) for number in chosen)
        table = add(add(self.seconds(replicas), self._cuts), behind)
        fits = self._possible & (self.bytes(in_use, replicas) <= limit)
        return np.where(fits, table, math.inf)

    def shortfall(self, first, in_use, replicas, behind):
        """By how many bytes a stage from layer i on exceeds its limit."""
        chosen = range(first, first + replicas)
        limit = min(self.devices.limit(number) for number in chosen)
        over = self.bytes(in_use, replicas) - limit
        allowed = self._possible & (self._cuts < math.inf)
        return np.where(allowed, np.maximum(over, behind), math.inf)

    def seconds(self, replicas):
        """`T` of the module's formula."""
        if replicas == 1:
            return self._seconds
        steps = 2 * (replicas - 1)
        each = self._weights / (replicas * self.devices.bytes_per_second)
        latency = self.devices.latency_seconds * (self._weights > 0)
        batch = self.pipeline.micro_batches
        most = math.ceil(batch / replicas)
        return (most * self._seconds + steps * (latency + each)) / batch

    def bytes(self, in_use, replicas):
        """Returns the bytes that each device of a stage holds."""
        number = self.pipeline.in_flight(in_use, replicas)
        kept = 1 if self.pipeline.recompute else number
        return (
            self._resident
            + self.pipeline.more_weights(number) * self._weights
            + kept * self._kept
            + number * self._received
        )

    def stage(self, i, j, first, in_use, replicas):
        """A `ChainStage` of layers i to j - 1."""
        return ChainStage(
            tuple(self._names[i:j]),
            self.devices.names[first : first + replicas],
            float(self.seconds(replicas)[i, j - 1]),
            float(self._cuts[j - 1]),
            int(self.bytes(in_use, replicas)[i, j - 1]),
            self.pipeline.in_flight(in_use, replicas),
        )


def _between(values, dtype):
    sums = np.concatenate([[0], np.cumsum(np.asarray(values, dtype))])
    return sums[None, 1:] - sums[:-1, None]


def cuts(graph, devices):
    """Returns the traffic over the cut before each layer, and behind the last.

    Returns:
      Bytes that arrive, and seconds of them and of their gradients, two lists
      of `len(graph.nodes) + 1`; infinite seconds where a group forbids a cut.
    """
    size = len(graph.nodes)
    place = {number: at for at, number in enumerate(graph.order)}
    received, seconds = [0] * (size + 1), [0.0] * (size + 1)
    for number, node in enumerate(graph.nodes):
        edges = graph.outgoing[number]
        ends = [place[graph.index[edge.consumer]] for edge in edges]
        for cut in range(place[number] + 1, max(ends, default=0) + 1):
            crossing = [
                e for e, end in zip(edges, ends, strict=True) if end >= cut
            ]
            there = min(node.output_bytes, sum(e.bytes for e in crossing))
            back = min(
                max(node.output_bytes, *(e.gradient_bytes for e in crossing)),
                sum(e.gradient_bytes for e in crossing),
            )
            received[cut] += there
            seconds[cut] += devices.transfer_seconds(there)
            seconds[cut] += devices.transfer_seconds(back)
    for group in graph.groups:
        places = [place[number] for number in group]
        for cut in range(min(places) + 1, max(places) + 1):
            seconds[cut] = math.inf
    return received, seconds


def _solve(costs, table_of, nothing):
    """The recursion.

    Args:
      costs: `_Costs`.
      table_of: Function of the first device, the devices in use from it on,
        the replicas of the stage, and the values behind it, (layers,); returns
        values (layers, layers).
      nothing: Value behind the last layer.

    Returns:
      The least value, and (i, j, first device, devices in use, replicas) of
      each stage; infinity and None if there is none.
    """
    total, size = len(costs.devices), costs.size
    most = costs.pipeline.max_replicas
    if most > 1:
        # Each has a micro-batch to take.
        most = min(most, costs.pipeline.micro_batches)
    equal = costs.devices.are_equal
    best, choice = {}, {}
    for first in range(total, -1, -1):
        rest = total - first
        # Of equal devices the last ones are as good as any.
        for in_use in [rest] if equal else range(rest + 1):
            if in_use and (first + 1, in_use) in best:
                values = best[first + 1, in_use].copy()
                chosen = list(choice[first + 1, in_use])
            else:
                values = np.full(size + 1, math.inf)
                chosen = [None] * (size + 1)
                if not in_use:
                    values[size] = nothing
            for replicas in range(1, min(in_use, most) + 1):
                behind = best[first + replicas, in_use - replicas]
                table = table_of(first, in_use, replicas, behind[1:])
                ends = np.argmin(table, axis=1)
                found = np.min(table, axis=1)
                for i in np.flatnonzero(found < values[:size]):
                    values[i] = found[i]
                    end = int(ends[i]) + 1
                    chosen[i] = (int(i), end, first, in_use, replicas)
            best[first, in_use], choice[first, in_use] = values, chosen
    starts = [
        (total - in_use if equal else 0, in_use)
        for in_use in range(1, total + 1)
    ]
    least = min(best[start][0] for start in starts)
    if least == math.inf:
        return least, None
    # No more devices for what is only rounding.
    least += _ROUNDING * abs(least)
    start = next(start for start in starts if best[start][0] <= least)
    stages, i, key = [], 0, start
    while i < size:
        stages.append(choice[key][i])
        _, i, first, in_use, replicas = stages[-1]
        key = first + replicas, in_use - replicas
    if equal:
        stages = [(*s[:2], s[2] - start[0], *s[3:]) for s in stages]
    return best[start][0], stages


def _shortfall(costs):
    """Says which stage lacks how much memory."""
    _, found = _solve(costs, costs.shortfall, -math.inf)
    stages = [costs.stage(*each) for each in found]
    limits = [
        min(costs.devices.limit(each[2] + n) for n in range(each[4]))
        for each in found
    ]
    short, worst = max(
        (stage.bytes - limit, number)
        for number, (stage, limit) in enumerate(
            zip(stages, limits, strict=True)
        )
    )
    stage, limit = stages[worst], limits[worst]
    nodes = repr(stage.nodes[0])
    if len(stage.nodes) > 1:
        nodes += f" to {stage.nodes[-1]!r}"
    return (
        f"The memory limits must let the model's {costs.size} nodes be cut "
        f"into contiguous stages on {len(costs.devices)} devices. Even the cut "
        f"that comes nearest is {short} bytes short: {nodes} needs "
        f"{stage.bytes} bytes with {stage.in_flight} micro-batches in flight, "
        f"and {stage.devices[0]} has {limit}."
    )
