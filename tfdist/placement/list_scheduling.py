"""Baechi's list schedulers: m-TOPO and m-ETF, and a placement by size.

Jeon et al., "Baechi: Fast Device Placement of Machine Learning Graphs" (SoCC
2020). Only forward passes are placed, backward passes are where they were;
as they run through the graph in reverse, a node counts with the seconds of
both, and an edge with what goes over it both ways. Devices never get more than
fits (`memory.MemoryLedger`). All are greedy: that they find nothing does not
say that there is nothing.
"""

from tfdist.placement import memory
from tfdist.placement import timeline
from tfdist.placement.colocation import merge_colocated


def topological_fill(graph, devices):
    """m-TOPO: fills one device after the other in topological order.

    A device is full at `total / n + largest` bytes, so that all get about the
    same, or where its memory limit is.

    Args:
      graph: A `CostGraph`.
      devices: A `Devices`.

    Returns:
      Name of a device for the name of each node, a dict.

    Raises:
      PlacementError: It finds nothing that fits.
    """
    merged = merge_colocated(graph)
    small = merged.graph
    ledger = memory.MemoryLedger(small, devices)
    sizes = [
        node.resident_bytes + node.activation_bytes for node in small.nodes
    ]
    cap = sum(sizes) / len(devices) + max(sizes)
    filled = [0] * len(devices)
    at = 0
    for number in small.order:
        allowed = ledger.allowed(number)
        # The last ones may be full though earlier ones are not.
        later = [device for device in allowed if device >= at]
        below = [d for d in later if filled[d] + sizes[number] <= cap]
        choices = below or later or allowed
        if not choices:
            raise _does_not_fit("m-TOPO", small, number, ledger, devices)
        device = choices[0]
        ledger.place(number, device)
        filled[device] += sizes[number]
        if device in below:
            at = device
    return merged.placement(memory.placement_of(small, ledger.device, devices))


def earliest_task_first(graph, devices):
    """m-ETF: of ready nodes and devices, the pair that can start first.

    Of pairs that can start at the same time, the node from which the way to
    the end is longest, on the device where it ends first.

    Args:
      graph: A `CostGraph`.
      devices: A `Devices`.

    Returns:
      Name of a device for the name of each node, a dict.

    Raises:
      PlacementError: It finds nothing that fits.
    """
    return schedule(graph, devices, "m-ETF", lambda graph, devices: {})


def largest_first(graph, devices):
    """Places by bytes alone: the largest group where most room is left.

    FTPipe's greedy assignment (Eliad et al., ATC 2021) sorts the same way,
    but its code then takes the smallest first; what is large has to be placed
    while there is room for it.

    Args:
      graph: A `CostGraph`.
      devices: A `Devices`.

    Returns:
      Name of a device for the name of each node, a dict.

    Raises:
      PlacementError: It finds nothing that fits.
    """

    def size(group):
        return sum(
            graph.nodes[number].resident_bytes
            + graph.nodes[number].activation_bytes
            for number in group
        )

    assignment = [None] * len(graph.nodes)
    limits = [devices.limit(number) for number in range(len(devices))]
    used = [0] * len(devices)
    for group in sorted(graph.groups, key=size, reverse=True):
        # Without limits, the one that holds least.
        device = max(
            range(len(devices)), key=lambda d: (limits[d] - used[d], -used[d])
        )
        used[device] += size(group)
        for number in group:
            assignment[number] = device
    over = memory.excess_bytes(graph, assignment, devices)
    if over:
        raise memory.PlacementError(
            "The memory limits must let the model's nodes be placed. "
            f"Placed by size, largest first, {over} bytes do not fit."
        )
    return memory.placement_of(graph, assignment, devices)


def schedule(graph, devices, method, favourites):
    """List scheduling by the earliest start.

    Groups that must be together are placed as one node, as in Baechi, and once
    more node by node, the first of a group deciding for all: a layer over many
    time chunks as one node would hide that the next layer can begin behind the
    first chunk. What takes the shorter simulated step is returned.

    Args:
      graph: A `CostGraph`.
      devices: A `Devices`.
      method: Its name, for errors.
      favourites: Function of a graph and devices to the favourite child of
        nodes that have one, a dict of positions.

    Returns:
      Name of a device for the name of each node, a dict.

    Raises:
      PlacementError: It finds nothing that fits.
    """

    def scheduled(small):
        scheduler = _Scheduler(small, devices, favourites(small, devices))
        return memory.placement_of(small, scheduler.run(method), devices)

    merged = merge_colocated(graph)
    found = []
    try:
        found.append(merged.placement(scheduled(merged.graph)))
    except memory.PlacementError:
        if not graph.colocated:
            raise
    if graph.colocated:
        try:
            found.append(scheduled(graph))
        except memory.PlacementError:
            if not found:
                raise
    simulator = timeline.Simulator(graph, devices)
    return min(
        found,
        key=lambda placement: simulator.seconds(
            memory.assignment_of(graph, placement, devices)
        ),
    )


def both_ways(devices):
    """Seconds of an edge's bytes and of its gradient's, a function."""
    return lambda edge: (
        devices.transfer_seconds(edge.bytes)
        + devices.transfer_seconds(edge.gradient_bytes)
    )


class _Scheduler:
    def __init__(self, graph, devices, favourites):
        self._graph = graph
        self._devices = devices
        self._favourites = favourites
        self._transfer = both_ways(devices)
        self._urgency = timeline.longest_paths(
            graph, [node.seconds for node in graph.nodes], self._transfer
        )
        self._ledger = memory.MemoryLedger(graph, devices)
        self._ends = [0.0] * len(graph.nodes)
        self._free = [0.0] * len(devices)
        # (node, until when) that a device waits for a favourite child.
        self._awaited = [None] * len(devices)

    def run(self, method):
        """Device of each node, a list of ints."""
        graph = self._graph
        waits = [len(edges) for edges in graph.incoming]
        comes = {n: self._arrivals(n) for n in graph.order if not waits[n]}
        while comes:
            allowed = {n: self._ledger.allowed(n) for n in comes}
            choices = [
                (*self._rating(number, device, comes[number]), number, device)
                for number in comes
                for device in allowed[number]
            ]
            # What does not fit now will not fit later.
            for number, some in allowed.items():
                if not some:
                    raise _does_not_fit(
                        method, graph, number, self._ledger, self._devices
                    )
            start, *_, number, device = min(choices)
            self._place(number, device, start)
            del comes[number]
            for edge in graph.outgoing[number]:
                consumer = graph.index[edge.consumer]
                waits[consumer] -= 1
                if not waits[consumer]:
                    comes[consumer] = self._arrivals(consumer)
        return self._ledger.device

    def _arrivals(self, number):
        """Moment at which all that a node needs is on each device."""
        found = [0.0] * len(self._devices)
        for edge in self._graph.incoming[number]:
            producer = self._graph.index[edge.producer]
            come = self._ends[producer] + self._transfer(edge)
            home = self._ledger.device[producer]
            for device, before in enumerate(found):
                here = self._ends[producer] if device == home else come
                found[device] = max(before, here)
        return found

    def _rating(self, number, device, arrivals):
        start = max(self._free[device], arrivals[device])
        awaited = self._awaited[device]
        if awaited is not None and awaited[0] != number:
            start = max(start, awaited[1])
        end = start + self._graph.nodes[number].seconds
        return start, -self._urgency[number], end

    def _place(self, number, device, start):
        self._ledger.place(number, device)
        self._ends[number] = start + self._graph.nodes[number].seconds
        self._free[device] = self._ends[number]
        for other, awaited in enumerate(self._awaited):
            if awaited is not None and awaited[0] == number:
                self._awaited[other] = None
        self._awaited[device] = None
        child = self._favourites.get(number)
        if child is not None:
            edge = next(
                edge
                for edge in self._graph.outgoing[number]
                if self._graph.index[edge.consumer] == child
            )
            # From then on it could start elsewhere as early.
            until = self._ends[number] + self._transfer(edge)
            self._awaited[device] = child, until


def _does_not_fit(method, graph, number, ledger, devices):
    node = graph.nodes[number]
    return memory.PlacementError(
        "The memory limits must leave room for all nodes. "
        f"{method} found none for {node.name!r}, of "
        f"{node.resident_bytes + node.activation_bytes} bytes and what "
        "comes to it or must be with it; left are "
        f"{dict(zip(devices.names, ledger.room, strict=True))}."
    )
