"""m-SCT's linear program and its favourites."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from tests import laws
from tests.placement import cost_graphs
from tests.placement import steps
from tfdist.placement import favourite_child
from tfdist.placement import list_scheduling
from tfdist.placement import timeline
from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Devices
from tfdist.placement.graph import Edge
from tfdist.placement.graph import Node

AB = Devices(("A", "B"), bytes_per_second=1)


def fork(children, unit=1.0):
    """A node "r" gives a byte to each child; all take a second, or a unit."""
    nodes = [Node("r", unit, output_bytes=1)]
    nodes += [Node(str(number), unit) for number in range(children)]
    edges = [Edge("r", node.name, 1, 0) for node in nodes[1:]]
    return CostGraph(nodes, edges)


@pytest.mark.parametrize("unit", [1.0, 1e-9])
@pytest.mark.parametrize("children", [2, 3, 5])
def test_children_of_the_same_cost_share_what_a_favourite_saves(children, unit):
    # Of k, sum x >= k - 1, and w = 2 + max x: all have (k - 1) / k.
    devices = Devices(("A", "B"), bytes_per_second=1 / unit)
    pairs, x = favourite_child.relaxation(fork(children, unit), devices)
    assert pairs == [(0, number + 1) for number in range(children)]
    assert x == pytest.approx([(children - 1) / children] * children)
    # Of two with 0.5 each, one; of more, none.
    found = favourite_child.favourite_children(fork(children, unit), devices)
    assert found == ({0: 1} if children == 2 else {})


def test_the_longer_way_has_the_favourite():
    found = favourite_child.favourite_children(skewed(), AB)
    names = [node.name for node in skewed().nodes]
    assert {names[a]: names[b] for a, b in found.items()} == {
        "p": "l",
        "l": "m",
    }


def test_an_only_child_is_a_favourite_though_nothing_depends_on_it():
    # m is long; whether s waits for p does not matter for the makespan.
    nodes = [Node("m", 9), Node("p", 1, output_bytes=1), Node("s", 1)]
    graph = CostGraph(nodes, [("p", "s")])
    assert favourite_child.favourite_children(graph, AB) == {1: 2}


def test_rounding_gives_each_at_most_one_child_and_one_parent():
    pairs = [(0, 1), (0, 2), (3, 2), (4, 1), (5, 6), (5, 7)]
    # Of equals what saves most: 0 -> 2; then 3 -> 2 has no child left.
    x = [0.5, 0.5, 0.5, 0.5 + 1e-9, 0.7, 0.51]
    found = favourite_child.rounded(pairs, x, [1, 2, 1, 1, 9, 9])
    assert found == {0: 2, 4: 1}
    found = favourite_child.rounded(pairs, [0.2, 0.1, 0, 1, 1, 1], [1] * 6)
    assert found == {3: 2, 0: 1}


@laws.settings(max_examples=12, nightly=300)
@given(cost_graphs.graphs(), cost_graphs.devices(3))
def test_the_program_keeps_its_constraints(graph, devices):
    pairs, x = favourite_child.relaxation(graph, devices)
    assert all(-1e-6 <= each <= 1 + 1e-6 for each in x)
    for end in (0, 1):
        for number in range(len(graph.nodes)):
            own = [
                each
                for pair, each in zip(pairs, x, strict=True)
                if pair[end] == number
            ]
            assert sum(own) >= len(own) - 1 - 1e-6
    found = favourite_child.favourite_children(graph, devices)
    assert set(found.items()) <= set(pairs)
    assert len(set(found.values())) == len(found)


@laws.settings(max_examples=12, nightly=300)
@given(cost_graphs.graphs(2, 6), st.data())
def test_no_choice_of_favourites_beats_the_program(graph, data):
    # Favourites of a placement on as many devices as there are nodes obey the
    # program; its makespan is below that of each choice of whole x.
    devices = Devices(("A",), bytes_per_second=1)
    pairs, x = favourite_child.relaxation(graph, devices)
    work = [node.seconds for node in graph.nodes]
    sent = list_scheduling.both_ways(devices)

    def makespan(weights):
        weight = dict(zip(pairs, weights, strict=True))
        return max(
            timeline.longest_paths(
                graph,
                work,
                lambda e: (
                    sent(e)
                    * weight[graph.index[e.producer], graph.index[e.consumer]]
                ),
            )
        )

    chosen = {}
    for parent, child in data.draw(st.permutations(pairs)):
        if parent not in chosen and child not in chosen.values():
            chosen[parent] = child
    whole = [0.0 if chosen.get(a) == b else 1.0 for a, b in pairs]
    # Small x are preferred by up to a thousandth of the largest cost.
    unit = max(*work, *(sent(edge) for edge in graph.edges), 0)
    assert makespan(x) <= makespan(whole) + 2e-3 * unit


def skewed():
    """A short child p -> s, and a long way p -> l -> m."""
    nodes = [
        Node("p", 1, output_bytes=2),
        Node("s", 0.5),
        Node("l", 1, output_bytes=2),
        Node("m", 5),
    ]
    edges = [Edge(*pair, gradient_bytes=0) for pair in ("ps", "pl", "lm")]
    return CostGraph(nodes, edges)


def test_a_device_waits_for_the_favourite():
    # f takes 3 bytes of p and 1 of q. With x of p = 1 / 4 both come at 2.75.
    nodes = [Node("p", 2, output_bytes=3), Node("q", 2, output_bytes=1)]
    nodes += [Node("s", 4), Node("f", 9)]
    edges = [Edge(*pair, gradient_bytes=0) for pair in ("pf", "qf")]
    graph = CostGraph(nodes, edges)
    pairs, x = favourite_child.relaxation(graph, AB)
    assert pairs == [(0, 3), (1, 3)]
    assert x == pytest.approx([0.25, 0.75])
    # m-ETF gives A to s at 2, until 6; so f starts on B, at 2 + 3.
    greedy = list_scheduling.earliest_task_first(graph, AB)
    assert greedy == {"p": "A", "q": "B", "s": "A", "f": "B"}
    assert steps.step_time(graph, greedy, AB).seconds == 5 + 9
    # m-SCT keeps A until 5, so that s goes to B and f starts at 2 + 1.
    found = favourite_child.small_communication_times(graph, AB)
    assert found == {"p": "A", "q": "B", "s": "B", "f": "A"}
    assert steps.step_time(graph, found, AB).seconds == 3 + 9


def test_a_device_does_not_wait_for_longer_than_that_saves():
    # f, p's favourite, waits for q, which takes 50 and fits B only. s could
    # start there at 50, and on A at 1 + 2, when f has nothing from being there
    # any more. If A waited until f has run, s would be on B.
    nodes = [Node("q", 50, 0, 10), Node("p", 1, output_bytes=2)]
    nodes += [Node("s", 1), Node("f", 9)]
    edges = [Edge(*pair, gradient_bytes=0) for pair in ("pf", "qf")]
    graph = CostGraph(nodes, edges)
    assert favourite_child.favourite_children(graph, AB) == {1: 3}
    devices = Devices(("A", "B"), (9, 20), bytes_per_second=1)
    found = favourite_child.small_communication_times(graph, devices)
    assert found == {"q": "B", "p": "A", "s": "A", "f": "A"}


def test_a_graph_without_edges_has_no_favourites():
    graph = CostGraph([Node("a", 1), Node("b", 1)])
    assert favourite_child.favourite_children(graph, AB) == {}
    found = favourite_child.small_communication_times(graph, AB)
    assert found == {"a": "A", "b": "B"}
