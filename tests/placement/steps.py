"""A simulated step with names, for tests."""

import dataclasses

from tfdist.placement import timeline
from tfdist.placement.memory import assignment_of


@dataclasses.dataclass(frozen=True)
class Transfer:
    """What went from one device to another.

    Attributes:
      node: Name of the node that sent it.
      backward: Whether it is a gradient.
      source: Name of the device.
      target: Name of the other.
      begins: Seconds.
      ends: Seconds.
    """

    node: str
    backward: bool
    source: str
    target: str
    begins: float
    ends: float


@dataclasses.dataclass(frozen=True)
class Timeline:
    """One simulated step.

    Attributes:
      seconds: When all is done.
      forward: (begin, end) seconds for the name of each node, a dict.
      backward: The same of backward passes.
      transfers: Of `Transfer`, in the order in which they begin.
      busy_seconds: That each device computes, a dict of its name.
    """

    seconds: float
    forward: dict
    backward: dict
    transfers: tuple
    busy_seconds: dict


def step_time(graph, placement, devices):
    """Simulates one training step, forward and backward.

    The backward pass of a node begins when its own forward pass and the
    backward passes of all its consumers are done and their gradients, each by
    itself, have come. That of a node without consumers follows its forward
    pass. What a node sends to a device travels once, for all consumers there.

    Args:
      graph: A `CostGraph`.
      placement: Name of a device for the name of each node, a dict.
      devices: A `Devices`. Memory limits do not matter here.

    Returns:
      A `Timeline`.

    Raises:
      ValueError: As `memory.assignment_of`.
    """
    assignment = assignment_of(graph, placement, devices)
    simulator = timeline.Simulator(graph, devices)
    begins, ends, transfers = simulator.run(assignment)
    size = len(graph.nodes)
    spans = list(zip(begins, ends, strict=True))
    names = [node.name for node in graph.nodes]
    busy = dict.fromkeys(devices.names, 0.0)
    for node in graph.nodes:
        number = assignment[graph.index[node.name]]
        busy[devices.names[number]] += node.seconds
    return Timeline(
        max(ends),
        dict(zip(names, spans[:size], strict=True)),
        dict(zip(names, spans[size:], strict=True)),
        tuple(
            Transfer(
                names[task % size],
                task >= size,
                devices.names[source],
                devices.names[target],
                begin,
                end,
            )
            for task, (source, target), begin, end in sorted(
                transfers, key=lambda transfer: transfer[2]
            )
        ),
        busy,
    )
