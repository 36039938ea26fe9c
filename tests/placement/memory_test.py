"""Memory of placements, by hand and by the definition."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from tests import laws
from tests.placement import cost_graphs
from tfdist.placement import memory
from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Devices
from tfdist.placement.graph import Node

AB = Devices(("A", "B"))


@pytest.mark.nightly
@laws.settings(max_examples=60)
@given(st.data())
def test_memory_as_defined(data):
    graph, devices = (
        data.draw(cost_graphs.graphs()),
        data.draw(cost_graphs.devices()),
    )
    all_of_them = list(cost_graphs.placements(graph, devices))
    placement = data.draw(st.sampled_from(all_of_them))
    held = cost_graphs.held(graph, placement, devices)
    assert memory.memory_bytes(graph, placement, devices) == held
    assignment = memory.assignment_of(graph, placement, devices)
    assert memory.placement_of(graph, assignment, devices) == placement
    fits = cost_graphs.fits(graph, placement, devices)
    assert fits == (not memory.excess_bytes(graph, assignment, devices))


@laws.settings(max_examples=60)
@given(st.data())
def test_the_ledger_never_gives_what_is_not_there(data):
    graph = data.draw(cost_graphs.graphs())
    devices = data.draw(cost_graphs.devices(3, st.integers(0, 60)))
    ledger = memory.MemoryLedger(graph, devices)
    for number in graph.order:
        allowed = ledger.allowed(number)
        if not allowed:
            return
        ledger.place(number, data.draw(st.sampled_from(allowed)))
    # In the end it has counted exactly what is held.
    placement = memory.placement_of(graph, ledger.device, devices)
    held = cost_graphs.held(graph, placement, devices)
    left = [
        limit - held[name]
        for name, limit in zip(
            devices.names, devices.memory_limits, strict=True
        )
    ]
    assert ledger.room == left
    assert min(left) >= 0
    memory.assignment_of(graph, placement, devices)


def test_the_first_of_a_group_reserves_room_for_the_others():
    nodes = [Node("a", 0, 0, 5), Node("b", 0, 0, 5), Node("c", 0, 0, 5)]
    graph = CostGraph(nodes, colocated=[("a", "c")])
    ledger = memory.MemoryLedger(graph, Devices(("A", "B"), (9, 10)))
    # A has room for a, not for c too.
    assert ledger.allowed(0) == [1]
    ledger.place(0, 1)
    assert ledger.allowed(1) == [0]
    ledger.place(1, 0)
    assert ledger.allowed(2) == [1]


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ({"a": "A", "b": "A"}, r"Missing: \['c'\]"),
        ({"a": "A", "b": "A", "c": "A", "d": "A"}, r"not nodes: \['d'\]"),
        ({"a": "A", "b": "A", "c": "C"}, "'c' on one of .*Received: .*='C'"),
        ({"a": "A", "b": "A", "c": "B"}, r"\('a', 'c'\) on one device"),
    ],
)
def test_bad_placements_are_refused(placement, message):
    graph = CostGraph([Node(name) for name in "abc"], colocated=[("a", "c")])
    with pytest.raises(ValueError, match=message):
        memory.assignment_of(graph, placement, AB)
