"""Cost graphs and devices: what they say, and what they refuse."""

import math

import pytest

from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Devices
from tfdist.placement.graph import Edge
from tfdist.placement.graph import Node


def nodes(names, **costs):
    return [Node(name, **costs) for name in names]


def test_order_is_that_of_the_nodes_if_they_can_run_so():
    graph = CostGraph(nodes("abcd"), [("a", "c"), ("b", "c"), ("a", "d")])
    assert graph.order == [0, 1, 2, 3]
    graph = CostGraph(nodes("dcba"), [("a", "b"), ("b", "c"), ("c", "d")])
    assert graph.order == [3, 2, 1, 0]


def test_edges_carry_all_of_the_output_if_nothing_else_is_said():
    graph = CostGraph(
        nodes("abcd", output_bytes=8),
        [("a", "b"), ("a", "c", 3), Edge("a", "d", gradient_bytes=0)],
    )
    assert [(e.bytes, e.gradient_bytes) for e in graph.edges] == [
        (8, 8),
        (3, 3),
        (8, 0),
    ]


def test_chains_are_told_from_other_graphs():
    line = [("a", "b"), ("b", "c")]
    assert CostGraph(nodes("a")).is_chain
    assert CostGraph(nodes("cab"), line).is_chain
    assert not CostGraph(nodes("abc"), line[:1]).is_chain
    assert not CostGraph(nodes("abc"), [*line, ("a", "c")]).is_chain


def test_groups_that_overlap_are_one():
    graph = CostGraph(
        nodes("abcdef"),
        [("f", "a")],
        [("e", "b"), ("c", "d"), ("b", "a"), ("f",)],
    )
    assert graph.colocated == (("a", "b", "e"), ("c", "d"))
    # In the order in which the first of each can run.
    assert graph.groups == [[1, 4, 0], [2, 3], [5]]


def test_bytes_that_are_not_whole_are_rounded_up_and_limits_down():
    node = Node("a", resident_bytes=1.2, output_bytes=0.1)
    assert (node.resident_bytes, node.output_bytes) == (2, 1)
    assert Edge("a", "b", 0.5).bytes == 1
    assert Devices(("A", "B"), (7.9, None)).memory_limits == (7, None)


def test_a_transfer_takes_its_latency_and_its_bytes():
    devices = Devices(("A", "B"), latency_seconds=0.5, bytes_per_second=4)
    assert devices.transfer_seconds(2) == 1.0
    assert devices.transfer_seconds(0) == 0.0
    assert Devices(("A", "B")).transfer_seconds(10**9) == 0.0


def test_devices_are_equal_or_not():
    assert Devices(("A", "B"), 5).are_equal
    assert not Devices(("A", "B"), (5, None)).are_equal
    assert Devices(("A", "B"), (5, None)).limit(1) == math.inf


def two(*edges, **kwargs):
    return lambda: CostGraph(nodes("abc", output_bytes=2), edges, **kwargs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Node(""), "`name` of Node must be a string"),
        (lambda: Node("a", -1), "forward_seconds` of Node 'a' .*=-1"),
        (
            lambda: Node("a", 0, math.nan),
            "backward_seconds.*Received: backward_seconds=nan",
        ),
        (
            lambda: Node("a", output_bytes="8"),
            "output_bytes.*Received: output_bytes='8'",
        ),
        (
            lambda: Node("a", resident_bytes=1, weight_bytes=2),
            r"part of resident_bytes \(1\). Received: .*=2",
        ),
        (lambda: Edge("a", "b", -1), "`bytes` of Edge 'a' -> 'b' .*bytes=-1"),
        (lambda: CostGraph(["a"]), "at least one Node"),
        (lambda: CostGraph(nodes("aba")), "unique names. Received: 'a' twice"),
        (two(("a", "x")), "'a' -> 'x'.* no node 'x'"),
        (two(("a", "b"), ("a", "b", 1)), "Received: 'a' -> 'b' twice"),
        (two(("a", "b", 3)), r"output_bytes \(2\). Received: bytes=3"),
        (two(colocated=[("a", "y")]), "no node 'y'"),
        (two(("a", "a")), "Received: the cycle 'a' -> 'a'"),
        (
            two(("a", "b"), ("b", "c"), ("c", "b")),
            "cycle. Received: .*'b' -> 'c' -> 'b'|'c' -> 'b' -> 'c'",
        ),
        (lambda: Devices("GPU:0"), "`names` of Devices must be at least one"),
        (lambda: Devices(("A", "A")), "each once"),
        (
            lambda: Devices(("A", "B"), (1,)),
            "`memory_limits` of Devices must be one",
        ),
        (lambda: Devices(("A",), None, 0, 0), "bytes_per_second.*ed: .*=0"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
