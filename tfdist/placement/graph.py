"""The cost model that partitioners work on: layers, edges, devices.

A `CostGraph` says what each part of a model costs, a `Devices` what there is
to run it on. Nothing here knows TensorFlow.
"""

import dataclasses
import functools
import heapq
import itertools
import math
import numbers

from tfdist import checks


@dataclasses.dataclass(frozen=True)
class Node:
    """A part of a model that stays on one device: a layer, or one call of it.

    Bytes that are not whole are rounded up. The backward pass runs where the
    forward pass ran.

    Attributes:
      name: Of the node, unique in its graph.
      forward_seconds: Of one micro-batch.
      backward_seconds: The same, of the backward pass.
      resident_bytes: Weights, gradients, slots of the optimizer: what is held
        all the time.
      activation_bytes: What is kept of each micro-batch from its forward to
        its backward pass, the output among it if it is kept. What comes from
        another device is not in it: its copy is counted where it arrives.
      output_bytes: Of all outputs together, per micro-batch.
      weight_bytes: Trainable weights, in `resident_bytes` too. This is what
        replicas sum gradients of and what weight stashing keeps versions of.

    Raises:
      ValueError: A number is negative or not finite, `name` is no name, or
        there are more weights than resident bytes.
    """

    name: str
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    resident_bytes: int = 0
    activation_bytes: int = 0
    output_bytes: int = 0
    weight_bytes: int = 0

    def __post_init__(self):
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(
                "Argument `name` of Node must be a string that is not empty. "
                f"Received: name={self.name!r}"
            )
        where = f"Node {self.name!r}: "
        for field in dataclasses.fields(self)[1:]:
            name = field.name
            value = checks.not_negative(where + name, getattr(self, name))
            value = math.ceil(value) if name.endswith("bytes") else value
            object.__setattr__(self, name, value)
        if self.weight_bytes > self.resident_bytes:
            raise ValueError(
                f"Argument `weight_bytes` of Node {self.name!r} must be part "
                f"of resident_bytes ({self.resident_bytes}). Received: "
                f"weight_bytes={self.weight_bytes}"
            )

    @property
    def seconds(self) -> float:
        """Forward and backward pass together, a float."""
        return self.forward_seconds + self.backward_seconds


@dataclasses.dataclass(frozen=True)
class Edge:
    """Tensors that one node gives to another.

    Attributes:
      producer: Name of the node that gives.
      consumer: Name of the node that takes.
      bytes: Per micro-batch; None: all of the producer's `output_bytes`.
        With 0 nothing is sent, it is only an order in time.
      gradient_bytes: What comes back in the backward pass; None: the same as
        `bytes`; 0 where no gradient is needed.

    Raises:
      ValueError: A number is negative or not finite.
    """

    producer: str
    consumer: str
    bytes: int | None = None
    gradient_bytes: int | None = None

    def __post_init__(self):
        where = f"Edge {self.producer!r} -> {self.consumer!r}: "
        for field in ("bytes", "gradient_bytes"):
            value = getattr(self, field)
            if value is not None:
                value = math.ceil(checks.not_negative(where + field, value))
                object.__setattr__(self, field, value)


@dataclasses.dataclass(frozen=True)
class CostGraph:
    """A model as costs: a directed graph without cycles.

    What a node sends to one device travels once, whoever takes it there: the
    sum of its edges to that device, at most its `output_bytes`.

    Attributes:
      nodes: Of `Node`.
      edges: Of `Edge`, or tuples of its arguments.
      colocated: Groups of names that must share a device (tied weights, calls
        of a shared layer). Groups that overlap are one.

    Raises:
      ValueError: There is no node, a name comes twice, an edge comes twice,
        names no node or carries more than its producer gives, a group names
        no node, or the edges make a cycle.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    colocated: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self):
        nodes = tuple(self.nodes)
        if not nodes or not all(isinstance(node, Node) for node in nodes):
            raise ValueError(
                "Argument `nodes` of CostGraph must be at least one Node. "
                f"Received: nodes={self.nodes!r}"
            )
        object.__setattr__(self, "nodes", nodes)
        seen = set()
        for node in nodes:
            if node.name in seen:
                raise ValueError(
                    "Argument `nodes` of CostGraph must have unique names. "
                    f"Received: {node.name!r} twice"
                )
            seen.add(node.name)
        object.__setattr__(self, "edges", tuple(self._whole_edges()))
        object.__setattr__(self, "colocated", self._joined_groups())
        self.order  # noqa: B018 - refuses cycles.

    def _whole_edges(self):
        seen = set()
        for edge in self.edges:
            if not isinstance(edge, Edge):
                edge = Edge(*edge)
            producer, consumer = edge.producer, edge.consumer
            arrow = f"{producer!r} -> {consumer!r}"
            for name in (producer, consumer):
                if name not in self.index:
                    raise ValueError(
                        f"CostGraph: edge {arrow} must join two nodes. There "
                        f"is no node {name!r}."
                    )
            if (producer, consumer) in seen:
                raise ValueError(
                    "Argument `edges` of CostGraph must have one edge between "
                    "two nodes, with the bytes of all that goes over it. "
                    f"Received: {arrow} twice"
                )
            seen.add((producer, consumer))
            whole = self.nodes[self.index[producer]].output_bytes
            size = whole if edge.bytes is None else edge.bytes
            if size > whole:
                raise ValueError(
                    f"Argument `bytes` of the edge {arrow} must be at most "
                    f"the producer's output_bytes ({whole}). Received: "
                    f"bytes={size}"
                )
            back = edge.gradient_bytes
            yield Edge(producer, consumer, size, size if back is None else back)

    def _joined_groups(self):
        group_of = {}
        for group in self.colocated:
            names = [group] if isinstance(group, str) else list(group)
            for name in names:
                if name not in self.index:
                    raise ValueError(
                        "Argument `colocated` of CostGraph must be groups of "
                        f"names of nodes. There is no node {name!r}. "
                        f"Received: colocated={group!r}"
                    )
            joined = set(names).union(*(group_of.get(n, ()) for n in names))
            for name in joined:
                group_of[name] = joined
        groups = {id(group): group for group in group_of.values()}
        found = [
            tuple(sorted(group, key=self.index.get))
            for group in groups.values()
            if len(group) > 1
        ]
        return tuple(sorted(found, key=lambda group: self.index[group[0]]))

    @functools.cached_property
    def index(self) -> dict[str, int]:
        """Position of each node in `nodes`, a dict of its name."""
        return {node.name: number for number, node in enumerate(self.nodes)}

    @functools.cached_property
    def incoming(self) -> list[list[Edge]]:
        """Edges to each node, a list for each in the order of `nodes`."""
        found = [[] for _ in self.nodes]
        for edge in self.edges:
            found[self.index[edge.consumer]].append(edge)
        return found

    @functools.cached_property
    def outgoing(self) -> list[list[Edge]]:
        """Edges from each node, a list for each in the order of `nodes`."""
        found = [[] for _ in self.nodes]
        for edge in self.edges:
            found[self.index[edge.producer]].append(edge)
        return found

    @functools.cached_property
    def order(self) -> list[int]:
        """Positions of the nodes, producers first, a list of ints.

        That of `nodes` if it is one in which they can run.
        """
        waits = [len(edges) for edges in self.incoming]
        ready = [number for number, wait in enumerate(waits) if not wait]
        order = []
        while ready:
            number = heapq.heappop(ready)
            order.append(number)
            for edge in self.outgoing[number]:
                consumer = self.index[edge.consumer]
                waits[consumer] -= 1
                if not waits[consumer]:
                    heapq.heappush(ready, consumer)
        if len(order) < len(self.nodes):
            cycle = " -> ".join(repr(name) for name in self._cycle(waits))
            raise ValueError(
                "Argument `edges` of CostGraph must not make a cycle. "
                f"Received: the cycle {cycle}"
            )
        return order

    def _cycle(self, waits):
        # Each node that still waits does so for another one that waits.
        at = next(number for number, wait in enumerate(waits) if wait)
        path = []
        while at not in path:
            path.append(at)
            at = next(
                self.index[edge.producer]
                for edge in self.incoming[at]
                if waits[self.index[edge.producer]]
            )
        cycle = [at, *reversed(path[path.index(at) :])]
        return [self.nodes[number].name for number in cycle]

    @functools.cached_property
    def groups(self) -> list[list[int]]:
        """Positions that go together, a list of lists; most are of one.

        In the order in which the first of each can run.
        """
        group_of = {n: group for group in self.colocated for n in group}
        found = {}
        for number in self.order:
            name = self.nodes[number].name
            key = group_of.get(name, (name,))
            found.setdefault(key, []).append(number)
        return list(found.values())

    @property
    def is_chain(self) -> bool:
        """Whether each node but the last gives to the next one only."""
        names = [self.nodes[number].name for number in self.order]
        pairs = {(edge.producer, edge.consumer) for edge in self.edges}
        return pairs == set(itertools.pairwise(names))


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices that a model can be placed on, and the links between them.

    One kind of link joins every two devices; what goes over it takes
    `latency_seconds + bytes / bytes_per_second`.

    Attributes:
      names: Of the devices, unique; their order is that of pipeline stages.
      memory_limits: Bytes of each device, None where there is no limit; one
        number (or None) for all.
      latency_seconds: Of each transfer.
      bytes_per_second: Of each link. Bytes, not bits.

    Raises:
      ValueError: Names are missing or not unique, there is not one limit for
        each device, or a number is out of its range.
    """

    names: tuple[str, ...]
    memory_limits: tuple[int | None, ...] | int | None = None
    latency_seconds: float = 0.0
    bytes_per_second: float = math.inf

    def __post_init__(self):
        names = self.names
        good = not isinstance(names, str) and all(
            isinstance(name, str) and name for name in names
        )
        if not good or not names or len(set(names)) < len(names):
            raise ValueError(
                "Argument `names` of Devices must be at least one name, each "
                f"once. Received: names={names!r}"
            )
        object.__setattr__(self, "names", tuple(names))
        limits = self.memory_limits
        if limits is None or isinstance(limits, numbers.Real):
            limits = [limits] * len(names)
        limits = tuple(limits)
        if len(limits) != len(names):
            raise ValueError(
                "Argument `memory_limits` of Devices must be one number for "
                f"each of the {len(names)} devices. Received: "
                f"memory_limits={limits!r}"
            )
        for limit in limits:
            if limit is not None:
                checks.not_negative("Devices: memory_limits", limit)
        limits = (None if x is None else math.floor(x) for x in limits)
        object.__setattr__(self, "memory_limits", tuple(limits))
        checks.not_negative("Devices: latency_seconds", self.latency_seconds)
        rate = self.bytes_per_second
        if not checks.is_number(rate) or not rate > 0:
            raise ValueError(
                "Argument `bytes_per_second` of Devices must be a number "
                f"above 0. Received: bytes_per_second={rate!r}"
            )

    def __len__(self) -> int:
        return len(self.names)

    @property
    def are_equal(self) -> bool:
        """Whether all have the same memory limit."""
        return len(set(self.memory_limits)) == 1

    def limit(self, number: int) -> float:
        """Memory limit of a device in bytes, infinite if it has none."""
        limit = self.memory_limits[number]
        return math.inf if limit is None else limit

    def transfer_seconds(self, size: int) -> float:
        """Seconds that so many bytes travel, a float; none takes no time."""
        if not size:
            return 0.0
        return self.latency_seconds + size / self.bytes_per_second
