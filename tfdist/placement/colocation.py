"""Nodes that must share a device, made one node where that is possible.

The schedulers of Baechi (Jeon et al., SoCC 2020) place groups this way. A
group that another node lies between (a -> b -> c with a and c together)
cannot be one node: it would wait for itself. It stays a constraint.
"""

import dataclasses

from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Edge
from tfdist.placement.graph import Node


@dataclasses.dataclass(frozen=True)
class Merged:
    """A graph with merged nodes.

    Attributes:
      graph: A `CostGraph`; a merged node has the name of its first member.
      name_of: Name in `graph` for the name of each node that was, a dict.
    """

    graph: CostGraph
    name_of: dict

    def placement(self, merged):
        """That of the graph that was.

        Args:
          merged: Device for the name of each node of `graph`, a dict.

        Returns:
          Device for the name of each node that was, a dict.
        """
        return {name: merged[of] for name, of in self.name_of.items()}


def merge_colocated(graph):
    """Makes each colocated group one node, if that makes no cycle.

    A merged node takes the sum of all costs of its members. It holds in memory
    at least what they do, so that a placement of the merged graph that fits
    fits the graph too.

    Args:
      graph: A `CostGraph`.

    Returns:
      A `Merged`.
    """
    name_of = {node.name: node.name for node in graph.nodes}
    left = []
    for group in graph.colocated:
        attempt = name_of | dict.fromkeys(group, group[0])
        if _has_cycle(graph, attempt):
            left.append(group)
        else:
            name_of = attempt
    members = {}
    for node in graph.nodes:
        members.setdefault(name_of[node.name], []).append(node)
    nodes = [_sum(name, some) for name, some in members.items()]
    outputs = {node.name: node.output_bytes for node in nodes}
    sizes = {}
    for edge in graph.edges:
        key = name_of[edge.producer], name_of[edge.consumer]
        if key[0] != key[1]:
            there, back = sizes.get(key, (0, 0))
            sizes[key] = there + edge.bytes, back + edge.gradient_bytes
    edges = [
        # Two members may take the same tensor.
        Edge(*key, min(there, outputs[key[0]]), back)
        for key, (there, back) in sizes.items()
    ]
    return Merged(CostGraph(nodes, edges, left), name_of)


def _sum(name, nodes):
    fields = dataclasses.fields(Node)[1:]
    return Node(
        name, *(sum(getattr(node, f.name) for node in nodes) for f in fields)
    )


def _has_cycle(graph, name_of):
    edges = {
        (name_of[edge.producer], name_of[edge.consumer]) for edge in graph.edges
    }
    names = set(name_of.values())
    consumers = {name: [] for name in names}
    waits = dict.fromkeys(names, 0)
    for producer, consumer in edges:
        if producer != consumer:
            consumers[producer].append(consumer)
            waits[consumer] += 1
    ready = [name for name, wait in waits.items() if not wait]
    done = 0
    while ready:
        done += 1
        for consumer in consumers[ready.pop()]:
            waits[consumer] -= 1
            if not waits[consumer]:
                ready.append(consumer)
    return done < len(names)
