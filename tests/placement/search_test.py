"""Annealing against all placements."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from tests import laws
from tests.placement import cost_graphs
from tests.placement import steps
from tfdist.placement import memory
from tfdist.placement import search
from tfdist.placement import timeline
from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Devices
from tfdist.placement.graph import Edge
from tfdist.placement.graph import Node


def seconds_of_all(graph, devices):
    """Seconds of each placement that fits, a list."""
    return [
        steps.step_time(graph, placement, devices).seconds
        for placement in cost_graphs.placements(graph, devices)
        if cost_graphs.fits(graph, placement, devices)
    ]


@laws.settings(max_examples=12, nightly=250)
@given(cost_graphs.graphs(1, 5), cost_graphs.devices(3))
def test_all_are_tried_if_they_are_few(graph, devices):
    best = min(seconds_of_all(graph, devices), default=None)
    if best is None:
        with pytest.raises(memory.PlacementError, match="bytes short"):
            search.anneal(graph, devices)
        return
    seconds, placement = search.anneal(graph, devices)
    assert seconds == best
    assert cost_graphs.fits(graph, placement, devices)
    assert steps.step_time(graph, placement, devices).seconds == best


def random_graph(rng, size):
    nodes = [
        Node(str(n), *rng.integers(1, 9, 2), *rng.integers(1, 9, 2), 4)
        for n in range(size)
    ]
    edges = [
        Edge(str(a), str(b))
        for a, b in itertools.combinations(range(size), 2)
        if rng.random() < 0.4
    ]
    return CostGraph(nodes, edges)


@pytest.mark.nightly
def test_a_sixth_of_the_placements_nearly_always_shows_the_best():
    found = []
    for seed in range(20):
        graph = random_graph(np.random.default_rng(seed), 6)
        devices = Devices(("A", "B", "C"), 40, 0, 4)
        best = min(seconds_of_all(graph, devices))
        # Of 729. What is drawn blindly finds it in 18 of the 20.
        seconds, _ = search.anneal(graph, devices, evaluations=120, seed=seed)
        found.append(seconds / best)
    assert found.count(1.0) >= 19
    assert max(found) <= 1.1


def test_a_way_that_first_gets_worse_is_found(monkeypatch):
    # Nodes i and i + 5 are a pair. Of even i, both are better on B, but one
    # alone is worse than none: whoever only goes down stays on A, at 50.
    graph = CostGraph([Node(str(number)) for number in range(10)])

    calls = []

    def simulated(self, assignment):
        calls.append(assignment)
        seconds = 0
        for i in range(5):
            moved = assignment[i] + assignment[i + 5]
            seconds += ([10, 20, 30] if i % 2 else [10, 12, 5])[moved]
        return seconds

    monkeypatch.setattr(timeline.Simulator, "seconds", simulated)
    for seed in range(3):
        calls.clear()
        seconds, _ = search.anneal(
            graph, Devices(("A", "B")), evaluations=400, seed=seed
        )
        assert seconds == 35
        assert len(calls) <= 400


@laws.settings(max_examples=12, nightly=400)
@given(st.data())
def test_never_worse_than_its_start_and_never_too_large(data):
    graph = data.draw(cost_graphs.graphs(4, 6))
    devices = data.draw(cost_graphs.devices(3, st.integers(15, 60)))
    all_of_them = list(cost_graphs.placements(graph, devices))
    starts = data.draw(
        st.lists(st.sampled_from(all_of_them), min_size=1, max_size=3)
    )
    good = [p for p in starts if cost_graphs.fits(graph, p, devices)]
    try:
        seconds, found = search.anneal(
            graph, devices, starts, evaluations=8, seed=1
        )
    except memory.PlacementError:
        assert not good
        return
    assert cost_graphs.fits(graph, found, devices)
    for placement in good:
        assert seconds <= steps.step_time(graph, placement, devices).seconds


def test_from_what_does_not_fit_to_what_does():
    # Exactly half of the nodes fit each device; all begin on one.
    graph = CostGraph([Node(str(n), 1, 0, 10) for n in range(12)])
    devices = Devices(("A", "B"), 60)
    _, placement = search.anneal(graph, devices, evaluations=100)
    assert list(placement.values()).count("A") == 6


def test_the_same_seed_finds_the_same():
    graph = random_graph(np.random.default_rng(0), 12)
    devices = Devices(("A", "B", "C"), 80, 0, 4)
    one, two, other = (
        search.anneal(graph, devices, evaluations=60, seed=seed)
        for seed in (3, 3, 4)
    )
    assert one == two
    assert one[1] != other[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"evaluations": 0}, "`evaluations` must be .*Received: evaluations=0"),
        ({"start": []}, "`start` must be 1 to 1000"),
        ({"start": {"a": "C"}}, "on one of"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        search.anneal(CostGraph([Node("a")]), Devices(("A", "B")), **arguments)
