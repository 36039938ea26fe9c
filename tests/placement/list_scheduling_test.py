"""m-TOPO, m-ETF and the placement by size, by hand."""

import pytest

from tests.placement import cost_graphs
from tests.placement import steps
from tfdist.placement import list_scheduling
from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Devices
from tfdist.placement.graph import Edge
from tfdist.placement.graph import Node
from tfdist.placement.memory import PlacementError

LINK = {"latency_seconds": 0, "bytes_per_second": 1}


def forward(seconds, *pairs, sent=1, resident=0):
    """A graph without backward passes: nodes by letter, pairs of letters."""
    nodes = [
        Node(name, each, output_bytes=sent, resident_bytes=resident)
        for name, each in seconds.items()
    ]
    return CostGraph(nodes, [Edge(*pair, gradient_bytes=0) for pair in pairs])


def test_etf_takes_the_pair_that_can_start_first():
    graph = forward({"r": 1, "x": 2, "y": 2, "j": 1}, "rx", "ry", "xj", "yj")
    found = list_scheduling.earliest_task_first(
        graph, Devices(("A", "B"), **LINK)
    )
    # r on A until 1, x there until 3. y can start on B at 2, on A at 3; it
    # ends at 4. j can start on B at 4 (x comes at 3 + 1), on A at 5.
    assert found == {"r": "A", "x": "A", "y": "B", "j": "B"}


def test_etf_counts_what_goes_back_too():
    graph = forward({"r": 1, "x": 2, "y": 2}, "rx", "ry")
    edges = [Edge("r", "x"), Edge("r", "y")]
    both = CostGraph(graph.nodes, edges)
    slow = Devices(("A", "B"), bytes_per_second=0.7)
    # There 1 / 0.7 < 2: y goes; there and back 2 / 0.7 > 2: it stays.
    placed = list_scheduling.earliest_task_first(graph, slow)
    assert placed == {"r": "A", "x": "A", "y": "B"}
    stays = list_scheduling.earliest_task_first(both, slow)
    assert stays == dict.fromkeys("rxy", "A")


def test_etf_of_equal_starts_takes_the_longest_way():
    # Three are ready at 0 and as long; b's way is the longest.
    graph = forward({"a": 1, "c": 1, "b": 1, "z": 3}, "bz")
    one = Devices(("A", "B"))
    found = list_scheduling.earliest_task_first(graph, one)
    # b first on A, then a on B; at 1 z before c.
    assert found == {"b": "A", "a": "B", "z": "A", "c": "B"}
    assert steps.step_time(graph, found, one).seconds == 4


def test_etf_places_where_there_is_room():
    graph = forward({"r": 1, "x": 2, "j": 1}, "rx", "xj", resident=5)
    devices = Devices(("A", "B"), (5, 100), **LINK)
    found = list_scheduling.earliest_task_first(graph, devices)
    assert found == {"r": "A", "x": "B", "j": "B"}
    with pytest.raises(PlacementError, match=r"m-ETF found none for 'j'.*'A'"):
        list_scheduling.earliest_task_first(
            graph, Devices(("A", "B"), (5, 6), **LINK)
        )


def test_a_layer_over_time_chunks_is_a_wavefront():
    # Two layers of four chunks; each layer stays together.
    names = [f"{layer}{chunk}" for layer in "ab" for chunk in range(4)]
    edges = [(f"a{n}", f"b{n}") for n in range(4)]
    edges += [(f"{x}{n}", f"{x}{n + 1}") for x in "ab" for n in range(3)]
    graph = CostGraph(
        [Node(name, 1) for name in names], edges, [names[:4], names[4:]]
    )
    devices = Devices(("A", "B"))
    found = list_scheduling.earliest_task_first(graph, devices)
    assert found == {n: "A" if n[0] == "a" else "B" for n in names}
    # As one node each they would take 8.
    assert steps.step_time(graph, found, devices).seconds == 5


def test_topo_fills_devices_to_their_share_and_the_largest():
    graph = cost_graphs.chain(*[1] * 6, resident_bytes=10, output=0)
    found = list_scheduling.topological_fill(graph, Devices(("A", "B", "C")))
    # 60 / 3 + 10 each: three, three, and none.
    assert found == {str(n): "AAABBB"[n] for n in range(6)}
    found = list_scheduling.topological_fill(
        graph, Devices(("A", "B", "C"), (25, 100, 100))
    )
    assert found == {str(n): "AABBBC"[n] for n in range(6)}


def test_topo_goes_beyond_the_share_rather_than_fail():
    def nodes(*sizes):
        return CostGraph([Node(str(n), 0, 0, s) for n, s in enumerate(sizes)])

    # B gets 90, beyond 100 / 2 + 30: A is full.
    found = list_scheduling.topological_fill(
        nodes(10, 30, 30, 30), Devices(("A", "B"), (10, 100))
    )
    assert found == {"0": "A", "1": "B", "2": "B", "3": "B"}
    # B is full; there is still room on A.
    devices = Devices(("A", "B"), (50, 30))
    found = list_scheduling.topological_fill(nodes(40, 30, 10), devices)
    assert found == {"0": "A", "1": "B", "2": "A"}
    with pytest.raises(PlacementError, match="m-TOPO found none for '2'"):
        list_scheduling.topological_fill(nodes(40, 30, 11), devices)


def test_the_largest_is_placed_while_there_is_room():
    # 4 | 3 then 3 | 2; the smallest first (2 | 3, then 3 | -) leave no 4.
    nodes = [Node(str(n), 0, 0, size) for n, size in enumerate((2, 3, 3, 4))]
    devices = Devices(("A", "B"), 6)
    found = list_scheduling.largest_first(CostGraph(nodes), devices)
    assert found == {"3": "A", "2": "B", "1": "B", "0": "A"}
    with pytest.raises(PlacementError, match="largest first, 1 bytes"):
        list_scheduling.largest_first(
            CostGraph(nodes), Devices(("A", "B"), (6, 5))
        )
