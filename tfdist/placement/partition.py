"""Finds a placement: chooses among the partitioners.

Two objectives, and they ask for different placements. "step" is the latency
of one training step without a pipeline: of a chain, more devices only add
transfers, so that they are used where memory asks for it; of a graph with
branches, branches can run at the same time. "throughput" is the slowest stage
of a full pipeline: there every device that takes work off it helps.
"""

import dataclasses
from typing import Any

from tfdist import checks
from tfdist.placement import chain
from tfdist.placement import favourite_child
from tfdist.placement import list_scheduling
from tfdist.placement import memory
from tfdist.placement import search
from tfdist.placement import timeline
from tfdist.placement.graph import CostGraph

METHODS = ("auto", "chain", "etf", "sct", "topo", "search")

_CHAIN_OBJECTIVES = {"chain": "step", "stages": "throughput"}
_PLACERS = {
    "etf": list_scheduling.earliest_task_first,
    "sct": favourite_child.small_communication_times,
    "topo": list_scheduling.topological_fill,
    "size": list_scheduling.largest_first,
}


@dataclasses.dataclass(frozen=True)
class Partition:
    """A placement, and why.

    Attributes:
      placement: Name of a device for the name of each node, a dict; of a
        stage with replicas the first.
      objective: "step" or "throughput".
      method: What found it: "chain", "etf", "sct", "topo", "search", "one"
        (all on one device), "stages" (those with the best throughput) or
        "size" (`largest_first`).
      seconds: Of a simulated step, or of the slowest stage.
      bytes: That each device holds, a dict of its name.
      stages: Of `chain.ChainStage`, a tuple; None unless stages were asked for.
      tried: Seconds of each method that was tried, or why it found nothing,
        a dict.
    """

    placement: dict
    objective: str
    method: str
    seconds: float
    bytes: dict
    stages: tuple | None
    tried: dict


def partition(
    graph: CostGraph,
    devices: Any,
    method: str = "auto",
    pipeline: Any = None,
    objective: str | None = None,
    evaluations: int = 1000,
    seed: int = 0,
) -> Partition:
    """Places the nodes of a graph on devices.

    Args:
      graph: A `CostGraph`.
      devices: A `Devices`.
      method: "chain": contiguous stages by dynamic programming; "etf", "sct",
        "topo": Baechi's m-ETF, m-SCT, m-TOPO; "search": annealing from the
        best of the others; "auto": "chain" for "throughput"; else the best of
        all but "search", of all on one device and, of a graph with branches,
        of the stages with the best throughput, which may overlap there. If
        none of them fits, "search".
      pipeline: A `chain.Pipeline`, with "throughput".
      objective: "step" or "throughput"; None: "throughput" with a pipeline,
        else "step".
      evaluations: Of "search".
      seed: Of "search".

    Returns:
      A `Partition`.

    Raises:
      ValueError: `method` or `objective` is not known, or they do not go
        together.
      PlacementError: No placement within the memory limits was found.
    """
    if objective is None:
        objective = "step" if pipeline is None else "throughput"
    _check(method, objective, pipeline)
    _refuse_what_never_fits(graph, devices)
    if objective == "throughput":
        return _pipelined(graph, devices, pipeline)
    candidates = _Candidates(graph, devices)
    if method != "auto" and method != "search":
        candidates.add(method)
        if candidates.best is None:
            raise candidates.error
        return candidates.result()
    candidates.add_all_on_one()
    candidates.add("chain")
    if not graph.is_chain:
        for other in ("stages", "etf", "sct", "topo"):
            candidates.add(other)
    if candidates.best is None:
        for other in ("etf", "sct", "topo", "size"):
            candidates.add(other)
    if candidates.best is None or method == "search":
        candidates.search(evaluations, seed)
    return candidates.result()


def _check(method, objective, pipeline):
    checks.one_of("method", method, METHODS)
    checks.one_of("objective", objective, chain.OBJECTIVES)
    if pipeline is not None and not isinstance(pipeline, chain.Pipeline):
        raise ValueError(
            "Argument `pipeline` must be a Pipeline of tfdist.placement.chain "
            f"or None. Received: pipeline={pipeline!r}"
        )
    if objective == "step" and pipeline is not None:
        raise ValueError(
            "Argument `pipeline` must be None with the objective 'step'. "
            f"Received: pipeline={pipeline!r}"
        )
    if objective == "throughput" and method not in ("auto", "chain"):
        raise ValueError(
            "Argument `method` must be 'auto' or 'chain' for stages of a "
            f"pipeline (objective 'throughput'). Received: method={method!r}"
        )


def _refuse_what_never_fits(graph, devices):
    """Says what no method could change."""
    limits = [devices.limit(number) for number in range(len(devices))]
    total = sum(n.resident_bytes for n in graph.nodes)
    if total > sum(limits):
        raise memory.PlacementError(
            "The memory limits must hold the model: its weights, gradients and "
            f"slots are {total} bytes, and the {len(devices)} devices have "
            f"{sum(limits)} together."
        )
    for group in graph.groups:
        size = sum(graph.nodes[number].resident_bytes for number in group)
        if size > max(limits):
            names = [graph.nodes[number].name for number in group]
            raise memory.PlacementError(
                "The memory limits must hold what stays together: the "
                f"weights, gradients and slots of {names} are {size} bytes, "
                f"and the largest device has {max(limits)}."
            )


def _pipelined(graph, devices, pipeline):
    found = chain.partition_chain(graph, devices, "throughput", pipeline)
    held = dict.fromkeys(devices.names, 0)
    for stage in found.stages:
        held.update(dict.fromkeys(stage.devices, stage.bytes))
    return Partition(
        found.placement,
        "throughput",
        "chain",
        found.seconds,
        held,
        found.stages,
        {"chain": found.seconds},
    )


class _Candidates:
    """Placements that fit, by simulated step time."""

    def __init__(self, graph, devices):
        self._graph, self._devices = graph, devices
        self._simulator = timeline.Simulator(graph, devices)
        self._found = []
        self.tried = {}
        self.best = None
        self.error = None

    def add_all_on_one(self):
        """All on the device where that is fastest."""
        for device in self._devices.names:
            placement = dict.fromkeys(self._graph.index, device)
            self._add("one", placement)
        self.tried.setdefault("one", "does not fit the memory of one device")

    def add(self, method):
        """Adds the placement that a method finds, unless it was tried."""
        if method in self.tried:
            return
        try:
            if method in _CHAIN_OBJECTIVES:
                placement = chain.partition_chain(
                    self._graph, self._devices, _CHAIN_OBJECTIVES[method]
                ).placement
            else:
                placement = _PLACERS[method](self._graph, self._devices)
        except memory.PlacementError as error:
            self.tried[method] = str(error)
            self.error = error
            return
        self._add(method, placement)

    def search(self, evaluations, seed):
        """Searches from all that were found."""
        best = sorted(self._found, key=lambda found: found[0])[:evaluations]
        starts = [placement for _, placement in best] or None
        seconds, placement = search.anneal(
            self._graph, self._devices, starts, evaluations, seed
        )
        self.tried["search"] = seconds
        # It is worse than none of the others.
        self.best = seconds, "search", placement

    def result(self):
        """A `Partition`."""
        seconds, method, placement = self.best
        return Partition(
            placement,
            "step",
            method,
            seconds,
            memory.memory_bytes(self._graph, placement, self._devices),
            None,
            self.tried,
        )

    def _add(self, method, placement):
        assignment = memory.assignment_of(self._graph, placement, self._devices)
        if memory.excess_bytes(self._graph, assignment, self._devices):
            return
        seconds = self._simulator.seconds(assignment)
        self._found.append((seconds, placement))
        self.tried[method] = min(seconds, self.tried.get(method, seconds))
        if self.best is None or seconds < self.best[0]:
            self.best = seconds, method, placement
