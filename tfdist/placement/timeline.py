"""A simulated time of one training step of a placed model.

Each device runs one thing at a time: of what is ready, what became ready
first, as TensorFlow's executor does. What goes from one device to another
travels while both compute; between two devices, in one direction, one thing
follows the other.
"""

import collections
import dataclasses
import heapq
import itertools

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
      peak_bytes: That each device holds at most during the step, a dict of
        its name. At most `memory.memory_bytes`.
    """

    seconds: float
    forward: dict
    backward: dict
    transfers: tuple
    busy_seconds: dict
    peak_bytes: dict


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
    simulator = Simulator(graph, devices)
    begins, ends, transfers = simulator.run(assignment)
    size = len(graph.nodes)
    spans = list(zip(begins, ends, strict=True))
    names = [node.name for node in graph.nodes]
    busy = dict.fromkeys(devices.names, 0.0)
    for node in graph.nodes:
        number = assignment[graph.index[node.name]]
        busy[devices.names[number]] += node.seconds / devices.speeds[number]
    peaks = _peaks(graph, assignment, devices, spans, transfers)
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
            for task, source, target, begin, end in sorted(
                transfers, key=lambda transfer: transfer[3]
            )
        ),
        busy,
        dict(zip(devices.names, peaks, strict=True)),
    )


def lower_bound(graph, devices):
    """Seconds that no placement's step can be faster than.

    The longest way through the graph without transfers, on the fastest
    device, and all work shared by all devices without a pause.

    Args:
      graph: A `CostGraph`.
      devices: A `Devices`.

    Returns:
      A float.
    """
    path = longest_paths(graph, [node.seconds for node in graph.nodes])
    work = sum(node.seconds for node in graph.nodes)
    return max(max(path) / max(devices.speeds), work / sum(devices.speeds))


def longest_paths(graph, seconds, transfers=None):
    """The longest way from each node's begin to an end.

    Args:
      graph: A `CostGraph`.
      seconds: Of each node, in the order of `graph.nodes`.
      transfers: Function of an `Edge` to seconds; None: 0.

    Returns:
      Seconds, a list in the order of `graph.nodes`.
    """
    longest = [0.0] * len(graph.nodes)
    for number in reversed(graph.order):
        behind = (
            longest[graph.index[edge.consumer]]
            + (transfers(edge) if transfers else 0.0)
            for edge in graph.outgoing[number]
        )
        longest[number] = seconds[number] + max(behind, default=0.0)
    return longest


class Simulator:
    """Steps of one graph on the same devices, placed in different ways.

    Args:
      graph: A `CostGraph`.
      devices: A `Devices`.
    """

    def __init__(self, graph, devices):
        self._devices = devices
        self._size = size = len(graph.nodes)
        # Tasks: forward passes in the order of nodes, then backward passes.
        self._seconds = [node.forward_seconds for node in graph.nodes]
        self._seconds += [node.backward_seconds for node in graph.nodes]
        self._waits = [len(edges) for edges in graph.incoming]
        self._waits += [1 + len(edges) for edges in graph.outgoing]
        place = {number: at for at, number in enumerate(graph.order)}
        self._rank = [place[number] for number in range(size)]
        self._rank += [2 * size - place[number] for number in range(size)]
        self._most = [node.output_bytes for node in graph.nodes]
        self._forward = [
            [(graph.index[edge.consumer], edge.bytes) for edge in edges]
            for edges in graph.outgoing
        ]
        self._back = [
            [(graph.index[edge.producer], edge.gradient_bytes) for edge in some]
            for some in graph.incoming
        ]

    def seconds(self, assignment):
        """When all is done.

        Args:
          assignment: Number of the device of each node, a list.

        Returns:
          A float.
        """
        return max(self.run(assignment)[1])

    def run(self, assignment):
        """One step.

        Args:
          assignment: Number of the device of each node, a list.

        Returns:
          When each task begins and ends, two lists: all forward passes, then
          all backward passes; and (task, device, other device, begin, end) of
          each transfer.
        """
        size, speeds = self._size, self._devices.speeds
        waits = list(self._waits)
        begins, ends = [0.0] * (2 * size), [0.0] * (2 * size)
        ready = [[] for _ in speeds]
        idle = [True] * len(speeds)
        links, transfers = {}, []
        # (seconds, count, task that ends or None, tasks whose input has come)
        count = itertools.count()
        events = [
            (0.0, next(count), None, (task,))
            for task in range(size)
            if not waits[task]
        ]
        for task in range(size):
            # Those that wait for nothing are released by that.
            waits[task] = max(waits[task], 1)
        while events:
            now = events[0][0]
            while events and events[0][0] == now:
                _, _, task, released = heapq.heappop(events)
                if task is not None:
                    idle[assignment[task % size]] = True
                    released, sent = self._after(task, assignment)
                    source = assignment[task % size]
                    for target, (num_bytes, consumers) in sent:
                        end = now
                        if num_bytes:
                            link = source, target
                            begin = max(now, links.get(link, 0.0))
                            end = begin + self._devices.transfer_seconds(
                                num_bytes
                            )
                            links[link] = end
                            transfers.append((task, *link, begin, end))
                        heapq.heappush(
                            events, (end, next(count), None, consumers)
                        )
                for other in released:
                    waits[other] -= 1
                    if not waits[other]:
                        heapq.heappush(
                            ready[assignment[other % size]],
                            (now, self._rank[other], other),
                        )
            for device, waiting in enumerate(ready):
                if idle[device] and waiting:
                    task = heapq.heappop(waiting)[2]
                    idle[device] = False
                    begins[task] = now
                    ends[task] = now + self._seconds[task] / speeds[device]
                    heapq.heappush(events, (ends[task], next(count), task, ()))
        return begins, ends, transfers

    def _after(self, task, assignment):
        """What the end of a task releases here, and sends elsewhere."""
        size = self._size
        node = task % size
        here, sent = [], {}
        if task < size:
            here.append(task + size)
            for consumer, num_bytes in self._forward[node]:
                device = assignment[consumer]
                if device == assignment[node]:
                    here.append(consumer)
                else:
                    before, consumers = sent.get(device, (0, ()))
                    num_bytes = min(before + num_bytes, self._most[node])
                    sent[device] = num_bytes, (*consumers, consumer)
            return here, sent.items()
        gradients = []
        for producer, num_bytes in self._back[node]:
            device = assignment[producer]
            if device == assignment[node]:
                here.append(producer + size)
            else:
                gradients.append((device, (num_bytes, (producer + size,))))
        return here, gradients


def _peaks(graph, assignment, devices, spans, transfers):
    """Most bytes that each device holds, a list of ints."""
    size = len(graph.nodes)
    changes = [[] for _ in devices.names]
    held = [0] * len(devices)
    for number, node in enumerate(graph.nodes):
        held[assignment[number]] += node.resident_bytes
        kept = node.activation_bytes
        changes[assignment[number]] += [
            (spans[number][0], -kept),
            (spans[number + size][1], kept),
        ]
    sizes = collections.Counter()
    last = collections.defaultdict(float)
    for edge in graph.edges:
        producer = graph.index[edge.producer]
        consumer = graph.index[edge.consumer]
        key = producer, assignment[consumer]
        sizes[key] += edge.bytes
        last[key] = max(last[key], spans[consumer + size][1])
    for task, _, target, begin, _ in transfers:
        if task < size:
            key = task, target
            copy = min(sizes[key], graph.nodes[task].output_bytes)
            changes[target] += [(begin, -copy), (last[key], copy)]
    peaks = []
    for now, some in zip(held, changes, strict=True):
        peak = now
        # Of the same moment, what is taken comes before what is given back.
        for _, given_back in sorted(some):
            now -= given_back
            peak = max(peak, now)
        peaks.append(peak)
    return peaks
