"""FTPipe's mixed assignment: a device gets several blocks that are far apart.

Contiguous stages are as slow as the slowest, and layers come in lumps. Cut
into more blocks than there are devices, and with blocks that are not
neighbours on one device, work can be spread more evenly, for more transfers
(Eliad et al. 2021, section 4).
"""

from collections.abc import Sequence
import dataclasses
import itertools
import math
from typing import Any

from tfdist.placement import chain
from tfdist.placement.graph import CostGraph
from tfdist.placement.memory import PlacementError

# As many assignments are tried one by one; beyond, neighbours of a good one.
_ALL = 20_000


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Blocks of a model, and the device of each.

    Attributes:
      blocks: Names of nodes, a tuple for each block, in the model's order.
        `[list(block) for block in blocks]` is what `tfdist.pipeline.pipeline`
        takes as `stages`.
      devices: Name of the device of each block. Neighbours differ.
      seconds: Per micro-batch, of the slowest device: its blocks, forward and
        backward, and what they send to and get back from the next block.
      bytes: That each device holds, a dict of its name.
    """

    blocks: tuple
    devices: tuple
    seconds: float
    bytes: dict


def mixed_assignment(
    graph: CostGraph,
    devices: Any,
    blocks_per_device: Sequence[int] = (1, 2, 3, 4),
) -> Mixed:
    """Finds blocks, and devices for them, with the least slowest device.

    For each number of blocks the model is cut with the least variance of their
    times; blocks are then assigned, largest first, to the device that is then
    the least loaded, and the assignment is improved by moves and swaps. Up to
    20,000 assignments are all tried.

    Args:
      graph: A `CostGraph`. Its nodes are taken in their topological order.
      devices: A `Devices`.
      blocks_per_device: Numbers of blocks to try, in multiples of the devices.

    Returns:
      A `Mixed`. A block's activations are recomputed: what is held of each
      micro-batch in flight is what came to the block, and the activations of
      the largest block once.

    Raises:
      ValueError: There are groups of nodes that must be together.
      PlacementError: Nothing fits the memory.
    """
    if graph.colocated:
        raise ValueError(
            "Argument `graph` must have no shared layers or tied weights for "
            f"a mixed assignment. Received: {graph.colocated!r}"
        )
    best = None
    for multiple in blocks_per_device:
        count = min(multiple * len(devices), len(graph.nodes))
        cut = _Cut(graph, devices, _blocks(graph, count))
        found = cut.assigned()
        if found is not None and (best is None or found[0] < best[0]):
            best = *found, cut
    if best is None:
        raise PlacementError(
            f"memory_limits {devices.memory_limits} let no blocks of the model "
            "be assigned: use more devices or a smaller micro-batch."
        )
    _, where, cut = best
    return Mixed(
        tuple(cut.blocks),
        tuple(devices.names[k] for k in where),
        max(cut.loads(where)),
        dict(zip(devices.names, cut.held(where), strict=True)),
    )


def _blocks(graph, count):
    """Names in so many contiguous blocks, with the least sum of squared times.

    That is the least variance, as the number of blocks is given.
    """
    names = [graph.nodes[number].name for number in graph.order]
    seconds = [graph.nodes[number].seconds for number in graph.order]
    upto = [0.0, *itertools.accumulate(seconds)]
    # least[k]: (cost, begins of blocks) of the first k nodes.
    least = [(0.0, ())] + [(math.inf, ())] * len(names)
    for _ in range(count):
        least = [(math.inf, ())] + [
            min(
                (least[i][0] + (upto[k] - upto[i]) ** 2, (*least[i][1], i))
                for i in range(k)
            )
            for k in range(1, len(names) + 1)
        ]
    bounds = [*least[-1][1], len(names)]
    return [tuple(names[a:b]) for a, b in itertools.pairwise(bounds)]


class _Cut:
    """A model cut into blocks, and what an assignment of them costs."""

    def __init__(self, graph, devices, blocks):
        self.blocks = blocks
        self._devices = devices
        nodes = [
            [graph.nodes[graph.index[name]] for name in block]
            for block in blocks
        ]
        self._seconds = [sum(n.seconds for n in block) for block in nodes]
        self._resident = [
            sum(n.resident_bytes for n in block) for block in nodes
        ]
        self._activations = [
            sum(n.activation_bytes for n in block) for block in nodes
        ]
        # In the model's order each passes on what others need.
        received, seconds = chain.cuts(graph, devices)
        ends = list(itertools.accumulate(map(len, blocks)))
        self._arriving = [
            received[end - len(b)] for end, b in zip(ends, blocks, strict=True)
        ]
        self._sent = [seconds[end] for end in ends]

    def assigned(self):
        """(seconds, devices) of the best that was found, None if none fits."""
        blocks, choices = len(self.blocks), len(self._devices)
        if choices**blocks <= _ALL:
            tried = itertools.product(range(choices), repeat=blocks)
        else:
            tried = self._improved(self._largest_first())
        best = None
        for where in tried:
            if self._is_allowed(where):
                seconds = max(self.loads(where))
                if best is None or seconds < best[0]:
                    best = seconds, tuple(where)
        return best

    def loads(self, where):
        """Seconds of each device."""
        loads = [0.0] * len(self._devices)
        for block, device in enumerate(where):
            loads[device] += self._seconds[block] + self._sent[block]
        return loads

    def held(self, where):
        """Bytes of each device."""
        held = [0] * len(self._devices)
        largest = [0] * len(self._devices)
        for block, device in enumerate(where):
            in_flight = len(self.blocks) - block
            held[device] += self._resident[block]
            held[device] += in_flight * self._arriving[block]
            largest[device] = max(largest[device], self._activations[block])
        return [a + b for a, b in zip(held, largest, strict=True)]

    def _is_allowed(self, where):
        apart = all(a != b for a, b in itertools.pairwise(where))
        return (apart or len(self._devices) == 1) and all(
            held <= self._devices.limit(device)
            for device, held in enumerate(self.held(where))
        )

    def _largest_first(self):
        where = [None] * len(self.blocks)
        loads = [0.0] * len(self._devices)
        for block in sorted(
            range(len(self.blocks)), key=lambda b: -self._seconds[b]
        ):
            near = where[max(block - 1, 0) : block + 2]
            free = [d for d in range(len(loads)) if d not in near]
            device = min(free or range(len(loads)), key=loads.__getitem__)
            where[block] = device
            loads[device] += self._seconds[block]
        return where

    def _improved(self, where):
        """Yields an assignment, then better and better ones."""
        round_robin = [k % len(self._devices) for k in range(len(where))]
        for start in (where, round_robin):
            at = list(start)
            yield at
            known = self._cost(at)
            while True:
                better = min(self._near(at), key=self._cost)
                if self._cost(better) >= known:
                    break
                at, known = better, self._cost(better)
                yield at

    def _cost(self, where):
        """Returns what to minimize: first violations, then the slowest load."""
        together = sum(a == b for a, b in itertools.pairwise(where))
        over = sum(
            max(0, held - self._devices.limit(device))
            for device, held in enumerate(self.held(where))
            if self._devices.limit(device) < math.inf
        )
        loads = self.loads(where)
        return together, over, max(loads), sum(load**2 for load in loads)

    def _near(self, where):
        for block in range(len(where)):
            for device in range(len(self._devices)):
                if device != where[block]:
                    yield [*where[:block], device, *where[block + 1 :]]
        for one, other in itertools.combinations(range(len(where)), 2):
            if where[one] != where[other]:
                swapped = list(where)
                swapped[one], swapped[other] = where[other], where[one]
                yield swapped
