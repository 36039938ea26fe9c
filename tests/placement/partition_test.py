"""The choice among partitioners."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from tests import laws
from tests.placement import cost_graphs
from tests.placement import steps
from tfdist.placement import memory
from tfdist.placement.chain import Pipeline
from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Devices
from tfdist.placement.graph import Node
from tfdist.placement.partition import METHODS
from tfdist.placement.partition import partition

AB = Devices(("A", "B"))


@laws.settings(max_examples=12, nightly=300)
@given(cost_graphs.graphs(1, 6), cost_graphs.devices(3, st.integers(5, 70)))
def test_no_method_exceeds_the_memory(graph, devices):
    anything = any(
        cost_graphs.fits(graph, placement, devices)
        for placement in cost_graphs.placements(graph, devices)
    )
    for method in METHODS:
        try:
            found = partition(graph, devices, method)
        except memory.PlacementError:
            # The greedy ones may miss what there is; these do not.
            assert method not in ("auto", "search") or not anything
            continue
        assert cost_graphs.fits(graph, found.placement, devices)
        assert found.placement in list(cost_graphs.placements(graph, devices))
        held = cost_graphs.held(graph, found.placement, devices)
        assert found.bytes == held
        step = steps.step_time(graph, found.placement, devices)
        assert found.seconds == step.seconds
        # The ones that compare have the best of what they tried.
        numbers = [s for s in found.tried.values() if not isinstance(s, str)]
        assert found.seconds == min(numbers)


def test_a_chain_stays_on_one_device_unless_it_is_a_pipeline():
    graph = cost_graphs.chain(1, 1, 1, 1)
    step = partition(graph, AB)
    assert (step.objective, step.method, step.seconds) == ("step", "one", 4)
    assert step.placement == dict.fromkeys("0123", "A")
    assert step.stages is None
    full = partition(graph, AB, objective="throughput")
    assert (full.objective, full.method, full.seconds) == (
        "throughput",
        "chain",
        2,
    )
    assert full.placement == {"0": "A", "1": "A", "2": "B", "3": "B"}
    assert [stage.nodes for stage in full.stages] == [("0", "1"), ("2", "3")]


def test_with_a_pipeline_it_is_the_throughput():
    graph = cost_graphs.chain(1, 1, activation_bytes=10, output=0)
    found = partition(graph, AB, pipeline=Pipeline("1f1b"))
    assert found.objective == "throughput"
    assert found.bytes == {"A": 20, "B": 10}


def test_branches_are_spread():
    graph = CostGraph([Node("a", 2), Node("b", 1), Node("c", 1)])
    found = partition(graph, AB)
    assert (found.seconds, found.tried["one"]) == (2, 4)
    assert found.method in ("etf", "sct", "stages")


def test_one_device_is_best_where_links_are_slow():
    nodes = [Node(n, 1, output_bytes=9) for n in "rxyj"]
    graph = CostGraph(nodes, ["rx", "ry", "xj", "yj"])
    slow = Devices(("A", "B"), bytes_per_second=1)
    found = partition(graph, slow)
    assert len(set(found.placement.values())) == 1
    assert found.seconds == 4


def test_what_was_tried_is_told():
    graph = cost_graphs.chain(1, 1, 1, resident_bytes=10)
    found = partition(graph, Devices(("A", "B"), 29))
    assert found.tried["one"] == "does not fit the memory of one device"
    assert found.tried["chain"] == found.seconds == 3


def test_a_chain_that_no_contiguous_stages_fit_is_still_placed():
    nodes = [Node("a", 1, 0, 10), Node("b", 1, 0, 25), Node("c", 1, 0, 10)]
    graph = CostGraph(nodes, ["ab", "bc"])
    devices = Devices(("A", "B"), (20, 25))
    found = partition(graph, devices)
    assert found.placement == {"a": "A", "b": "B", "c": "A"}
    assert "bytes short" in found.tried["chain"]
    assert "search" not in found.tried
    with pytest.raises(memory.PlacementError, match="bytes short"):
        partition(graph, devices, "chain")


def test_a_search_that_may_not_look_far_begins_with_the_best():
    graph = CostGraph([Node("a", 2), Node("b", 1), Node("c", 1)])
    found = partition(graph, AB, "search", evaluations=1)
    assert found.seconds == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "rl"}, "`method` must be one of .*Received: method='rl'"),
        (
            {"method": "etf", "objective": "throughput"},
            "`method` must be 'auto' or 'chain' for stages",
        ),
        (
            {"objective": "step", "pipeline": Pipeline()},
            "`pipeline` must be None",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        partition(cost_graphs.chain(1, 1), AB, **arguments)


def test_what_never_fits_is_refused_with_what_is_short():
    graph = cost_graphs.chain(1, 1, 1, resident_bytes=10)
    with pytest.raises(
        memory.PlacementError, match="30 bytes, and the 2 devices have 28"
    ):
        partition(graph, Devices(("A", "B"), 14))
    with pytest.raises(
        memory.PlacementError, match=r"\['1'\] are 10 .* device has 9"
    ):
        graph = CostGraph([Node("0"), Node("1", resident_bytes=10)])
        partition(graph, Devices(("A", "B"), 9), objective="throughput")
