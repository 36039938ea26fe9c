"""Random cost graphs and devices, and what every placement of them costs."""

import itertools

from hypothesis import strategies as st

from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Devices
from tfdist.placement.graph import Edge
from tfdist.placement.graph import Node

# Whole numbers: sums of seconds are exact in any order.
few = st.integers(0, 6)
some_limits = st.none() | st.integers(0, 60)


def chain(*seconds, output=1, **node):
    """A chain of nodes "0", "1", ... of these forward seconds."""
    nodes = [
        Node(str(n), each, output_bytes=output, **node)
        for n, each in enumerate(seconds)
    ]
    pairs = itertools.pairwise(n.name for n in nodes)
    return CostGraph(nodes, [Edge(*pair) for pair in pairs])


@st.composite
def nodes(draw, least, most):
    """Nodes "0", "1", ..., a list."""
    found = []
    for number in range(draw(st.integers(least, most))):
        forward, backward, more, activation, output, weight = (
            draw(few) for _ in range(6)
        )
        found.append(
            Node(
                str(number),
                forward,
                backward,
                weight + more,
                activation,
                output,
                weight,
            )
        )
    return found


@st.composite
def groups(draw, names):
    """None, or one or two groups of names."""
    some = st.lists(st.sampled_from(names), max_size=3)
    return [draw(some) for _ in range(draw(st.integers(0, 2)))]


@st.composite
def edge(draw, producer, consumer):
    """With some, all or none of the producer's output."""
    there = draw(st.none() | st.integers(0, producer.output_bytes))
    back = draw(st.none() | few)
    return Edge(producer.name, consumer.name, there, back)


@st.composite
def chains(draw, most=8):
    """Chains, some with groups."""
    found = draw(nodes(1, most))
    return CostGraph(
        found,
        [draw(edge(*pair)) for pair in itertools.pairwise(found)],
        draw(groups([node.name for node in found])),
    )


@st.composite
def graphs(draw, least=1, most=6):
    """Graphs without cycles, some with groups, nodes in any order."""
    found = draw(nodes(least, most))
    edges = [
        draw(edge(*pair))
        for pair in itertools.combinations(found, 2)
        if draw(st.booleans())
    ]
    return CostGraph(
        draw(st.permutations(found)),
        edges,
        draw(groups([node.name for node in found])),
    )


@st.composite
def devices(draw, most=4, limits=some_limits):
    """Devices "A", "B", ..., equal or not."""
    count = draw(st.integers(1, most))
    each = st.lists(limits, min_size=count, max_size=count)
    return Devices(
        tuple("ABCDEF"[:count]),
        draw(limits | each),
        draw(st.sampled_from([0, 1])),
        draw(st.sampled_from([0.5, 1, 4, float("inf")])),
    )


def placements(graph, devices):
    """All placements that keep groups together."""
    groups = [[graph.nodes[n].name for n in group] for group in graph.groups]
    for chosen in itertools.product(devices.names, repeat=len(groups)):
        yield {
            name: device
            for device, group in zip(chosen, groups, strict=True)
            for name in group
        }


def held(graph, placement, devices):
    """Bytes on each device, by the definition, a dict."""
    found = dict.fromkeys(devices.names, 0)
    for node in graph.nodes:
        home = placement[node.name]
        found[home] += node.resident_bytes + node.activation_bytes
        for device in devices.names:
            sent = sum(
                edge.bytes
                for edge in graph.edges
                if edge.producer == node.name
                and placement[edge.consumer] == device != home
            )
            found[device] += min(sent, node.output_bytes)
    return found


def fits(graph, placement, devices):
    """Whether no limit is exceeded."""
    limits = dict(zip(devices.names, devices.memory_limits, strict=True))
    return all(
        limits[device] is None or size <= limits[device]
        for device, size in held(graph, placement, devices).items()
    )
