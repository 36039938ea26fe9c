"""Groups that become one node, and those that cannot."""

from hypothesis import given
from hypothesis import strategies as st

from tests import laws
from tests.placement import cost_graphs
from tfdist.placement.colocation import merge_colocated
from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Node


def graph(groups, *edges):
    nodes = [Node(name, 1, 2, 3, 4, 5, 1) for name in "abcd"]
    return CostGraph(nodes, edges, groups)


def test_a_group_becomes_one_node_with_the_sum_of_its_costs():
    merged = merge_colocated(
        graph(
            [("b", "c")], ("a", "b", 3), ("a", "c", 4), ("b", "c"), ("c", "d")
        )
    )
    assert merged.graph.colocated == ()
    assert [node.name for node in merged.graph.nodes] == ["a", "b", "d"]
    assert merged.graph.nodes[1] == Node("b", 2, 4, 6, 8, 10, 2)
    # What a gives to both, at most its output; nothing to itself.
    assert {(e.producer, e.consumer, e.bytes) for e in merged.graph.edges} == {
        ("a", "b", 5),
        ("b", "d", 5),
    }
    assert merged.placement({"a": "A", "b": "B", "d": "C"}) == {
        "a": "A",
        "b": "B",
        "c": "B",
        "d": "C",
    }


def test_a_group_with_a_node_in_between_stays_a_constraint():
    merged = merge_colocated(
        graph([("a", "c"), ("b", "d")], ("a", "b"), ("b", "c"))
    )
    # a -> b -> c forbids the first; the second is then possible.
    assert merged.graph.colocated == (("a", "c"),)
    assert [node.name for node in merged.graph.nodes] == ["a", "b", "c"]


def test_two_groups_that_only_together_make_a_cycle_are_not_both_merged():
    merged = merge_colocated(
        graph([("a", "d"), ("b", "c")], ("a", "b"), ("c", "d"))
    )
    assert len(merged.graph.colocated) == 1
    assert len(merged.graph.nodes) == 3


@laws.settings(max_examples=80)
@given(st.data())
def test_what_fits_when_merged_fits(data):
    one = data.draw(cost_graphs.graphs())
    devices = data.draw(cost_graphs.devices(3))
    merged = merge_colocated(one)
    placement = data.draw(
        st.sampled_from(list(cost_graphs.placements(merged.graph, devices)))
    )
    whole = merged.placement(placement)
    assert any(whole == other for other in cost_graphs.placements(one, devices))
    before = cost_graphs.held(merged.graph, placement, devices)
    after = cost_graphs.held(one, whole, devices)
    assert all(after[name] <= before[name] for name in devices.names)
    for cost in ("seconds", "resident_bytes", "activation_bytes"):
        assert sum(getattr(n, cost) for n in merged.graph.nodes) == sum(
            getattr(n, cost) for n in one.nodes
        )
