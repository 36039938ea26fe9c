"""Blocks on devices: as even as they can be, within memory."""

import itertools

import hypothesis
from hypothesis import strategies as st
import pytest

from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Devices
from tfdist.placement.graph import Edge
from tfdist.placement.graph import Node
from tfdist.placement.memory import PlacementError
from tfdist.placement.mixed import mixed_assignment


def chain_of(seconds, resident=None, sizes=None):
    resident = resident or [0] * len(seconds)
    sizes = sizes or [0] * len(seconds)
    nodes = [
        Node(str(k), t, 2 * t, resident_bytes=r, output_bytes=size)
        for k, (t, r, size) in enumerate(
            zip(seconds, resident, sizes, strict=True)
        )
    ]
    edges = [Edge(a.name, b.name) for a, b in itertools.pairwise(nodes)]
    return CostGraph(tuple(nodes), tuple(edges))


def test_lumps_are_spread():
    """3, 5, 3, 1: contiguous stages take 8 at best, alternating ones 6."""
    found = mixed_assignment(
        chain_of([3, 5, 3, 1]), Devices(("a", "b")), (1, 2)
    )
    assert found.seconds == 3 * 6
    assert found.blocks == (("0",), ("1",), ("2",), ("3",))
    assert found.devices in (("a", "b", "a", "b"), ("b", "a", "b", "a"))


def test_transfers_count():
    """The same, but that what crosses takes longer than what is won."""
    devices = Devices(("a", "b"), bytes_per_second=1.0)
    graph = chain_of([3, 5, 3, 1], sizes=[30, 1, 30, 0])
    found = mixed_assignment(graph, devices, (1, 2))
    assert found.blocks == (("0", "1"), ("2", "3"))
    assert found.seconds == 3 * 8 + 2


def test_what_two_later_blocks_take_is_sent_once():
    devices = Devices(("a", "b", "c"), bytes_per_second=1.0)
    chain = chain_of([1, 1, 1], sizes=[10, 0, 0])
    graph = CostGraph(chain.nodes, (*chain.edges, Edge("0", "2")))
    found = mixed_assignment(graph, devices, (1,))
    # 10 bytes there, as many back; "1" holds two micro-batches, "2" one.
    assert found.seconds == 3 + 2 * 10
    assert sorted(found.bytes.values()) == [0, 10, 20]


@hypothesis.given(
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
    st.lists(st.integers(0, 5), min_size=4, max_size=4),
    st.integers(2, 3),
    st.integers(4, 20),
)
def test_is_the_best_within_memory(seconds, resident, count, limit):
    names = tuple("abc"[:count])
    devices = Devices(names, limit)
    graph = chain_of(seconds, resident)
    allowed = []
    for where in itertools.product(names, repeat=4):
        apart = all(a != b for a, b in itertools.pairwise(where))
        held = dict.fromkeys(names, 0)
        loads = dict.fromkeys(names, 0)
        for k, name in enumerate(where):
            held[name] += resident[k]
            loads[name] += 3 * seconds[k]
        if apart and max(held.values()) <= limit:
            allowed.append(max(loads.values()))
    try:
        found = mixed_assignment(graph, devices, (4,))
    except PlacementError:
        assert not allowed
        return
    assert max(found.bytes.values()) <= limit
    # Nothing is won by fewer blocks that this would not find: neighbours that
    # are together are one block.
    assert found.seconds == min(allowed)


def test_many_blocks_are_nearly_even():
    stream = [(7 * k) % 11 + 1 for k in range(40)]
    devices = Devices(tuple(f"d{k}" for k in range(4)))
    found = mixed_assignment(chain_of(stream), devices)
    assert len(found.blocks) > 7
    assert all(a != b for a, b in itertools.pairwise(found.devices))
    ideal = 3 * sum(stream) / 4
    assert ideal <= found.seconds <= 1.06 * ideal


def test_two_blocks_change_places_where_no_move_helps():
    """By moves of one block alone it ends at 1.08 of the ideal."""
    seconds = [14, 27, 30, 18, 30, 21, 4, 6, 21, 24, 28, 10]
    devices = Devices(tuple(f"d{k}" for k in range(4)))
    found = mixed_assignment(chain_of(seconds), devices)
    assert found.seconds <= 1.04 * 3 * sum(seconds) / 4


def test_refused():
    graph = chain_of([1, 1], resident=[5, 5])
    with pytest.raises(PlacementError, match="memory_limits"):
        mixed_assignment(graph, Devices(("a", "b"), 4))
    shared = CostGraph(graph.nodes, graph.edges, (("0", "1"),))
    with pytest.raises(ValueError, match="shared layers"):
        mixed_assignment(shared, Devices(("a", "b")))
