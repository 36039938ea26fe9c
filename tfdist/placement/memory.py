"""Memory that a placement takes on each device.

A device holds, of each of its nodes, the resident bytes and the activations,
and a copy of what comes from other devices. This is what can be held at once
at most, whatever the order in which things run.
"""

import collections

from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Devices


class PlacementError(ValueError):
    """No placement within the memory limits was found."""


def assignment_of(graph, placement, devices):
    """A placement as numbers.

    Args:
      graph: A `CostGraph`.
      placement: Name of a device for the name of each node, a dict.
      devices: A `Devices`.

    Returns:
      Number of the device of each node, a list in the order of `graph.nodes`.

    Raises:
      ValueError: A node or a device is not known, a node is missing, or a
        group that must be together is not.
    """
    numbers = {name: number for number, name in enumerate(devices.names)}
    unknown = [name for name in placement if name not in graph.index]
    missing = [name for name in graph.index if name not in placement]
    if unknown or missing:
        raise ValueError(
            "Argument `placement` must name the device of each node. "
            f"Missing: {missing}; not nodes: {unknown}."
        )
    for name, device in placement.items():
        if device not in numbers:
            raise ValueError(
                f"Argument `placement` must put {name!r} on one of "
                f"{devices.names}. Received: placement[{name!r}]={device!r}"
            )
    for group in graph.colocated:
        if len({placement[name] for name in group}) > 1:
            raise ValueError(
                f"Argument `placement` must keep {group} on one device. "
                f"Received: {[placement[name] for name in group]}"
            )
    return [numbers[placement[node.name]] for node in graph.nodes]


def placement_of(graph, assignment, devices):
    """The reverse of `assignment_of`."""
    return {
        node.name: devices.names[number]
        for node, number in zip(graph.nodes, assignment, strict=True)
    }


def memory_bytes(graph, placement, devices):
    """Returns the bytes on each device, with one micro-batch in flight.

    Args:
      graph: A `CostGraph`.
      placement: Name of a device for the name of each node, a dict.
      devices: A `Devices`.

    Returns:
      Bytes for the name of each device, a dict.

    Raises:
      ValueError: As `assignment_of`.
    """
    assignment = assignment_of(graph, placement, devices)
    held = held_bytes(graph, assignment, len(devices))
    return dict(zip(devices.names, held, strict=True))


def held_bytes(graph, assignment, num_devices):
    """As `memory_bytes`, with numbers of devices; a list of ints."""
    held = [0] * num_devices
    received = collections.Counter()
    for number, node in enumerate(graph.nodes):
        device = assignment[number]
        held[device] += node.resident_bytes + node.activation_bytes
        for edge in graph.incoming[number]:
            producer = graph.index[edge.producer]
            if assignment[producer] != device:
                received[producer, device] += edge.bytes
    for (producer, device), size in received.items():
        held[device] += min(size, graph.nodes[producer].output_bytes)
    return held


def excess_bytes(graph, assignment, devices):
    """By how much limits are exceeded, in all; 0 if the placement fits."""
    held = held_bytes(graph, assignment, len(devices))
    over = (size - devices.limit(n) for n, size in enumerate(held))
    return sum(max(0, size) for size in over)


class MemoryLedger:
    """The room that is left while nodes are placed, producers first.

    The first node of a group reserves what all of the group can take, so that
    the others fit later whatever comes to them from where.

    Args:
      graph: A `CostGraph`.
      devices: A `Devices`.

    Attributes:
      room: Bytes that are left on each device, a list.
      device: Of each node, a list; None for those that have none yet.
    """

    def __init__(self, graph: CostGraph, devices: Devices):
        self.room = [devices.limit(number) for number in range(len(devices))]
        self.device = [None] * len(graph.nodes)
        self._graph = graph
        self._group = {n: group for group in graph.groups for n in group}
        self._received = collections.Counter()

    def allowed(self, number):
        """Devices on which a node fits, a list of ints."""
        for other in self._group[number]:
            if self.device[other] is not None:
                return [self.device[other]]
        return [
            device
            for device, room in enumerate(self.room)
            if self._taken(number, device) <= room
        ]

    def place(self, number, device):
        """Puts a node on a device that is allowed."""
        self.room[device] -= self._taken(number, device)
        self.device[number] = device
        for edge in self._graph.incoming[number]:
            producer = self._graph.index[edge.producer]
            if self.device[producer] != device:
                self._received[producer, device] += edge.bytes

    def _taken(self, number, device):
        group = self._group[number]
        if any(self.device[other] is not None for other in group):
            # All but what does not come from elsewhere is reserved.
            return self._arriving(number, device) - self._most(number)
        later = (self._most(other) for other in group if other != number)
        own = sum(
            self._graph.nodes[other].resident_bytes
            + self._graph.nodes[other].activation_bytes
            for other in group
        )
        return own + sum(later) + self._arriving(number, device)

    def _most(self, number):
        index = self._graph.index
        return sum(
            edge.bytes
            for edge in self._graph.incoming[number]
            if index[edge.producer] not in self._group[number]
        )

    def _arriving(self, number, device):
        size = 0
        for edge in self._graph.incoming[number]:
            producer = self._graph.index[edge.producer]
            if self.device[producer] != device:
                most = self._graph.nodes[producer].output_bytes
                before = self._received[producer, device]
                size += min(before + edge.bytes, most) - min(before, most)
        return size
