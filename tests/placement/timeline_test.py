"""Simulated steps, by hand and by the rules that they follow."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from tests import laws
from tests.placement import cost_graphs
from tests.placement import steps
from tfdist.placement import timeline
from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Devices
from tfdist.placement.graph import Node

AB = Devices(("A", "B"), latency_seconds=1, bytes_per_second=2)


def test_a_chain_takes_the_sum_of_all():
    nodes = [Node(n, 1, 2, output_bytes=4) for n in "abc"]
    graph = CostGraph(nodes, [("a", "b"), ("b", "c")])
    alone = steps.step_time(graph, dict.fromkeys("abc", "A"), AB)
    assert (alone.seconds, alone.transfers) == (9, ())
    # Two cuts of 1 + 4 / 2, there and back.
    split = steps.step_time(graph, {"a": "A", "b": "B", "c": "A"}, AB)
    assert split.seconds == 9 + 4 * 3
    assert split.busy_seconds == {"A": 6, "B": 3}
    assert split.forward == {"a": (0, 1), "b": (4, 5), "c": (8, 9)}
    assert split.backward == {"c": (9, 11), "b": (14, 16), "a": (19, 21)}
    assert [
        (t.node, t.backward, t.source, t.target, t.begins, t.ends)
        for t in split.transfers
    ] == [
        ("a", False, "A", "B", 1, 4),
        ("b", False, "B", "A", 5, 8),
        ("c", True, "A", "B", 11, 14),
        ("b", True, "B", "A", 16, 19),
    ]


def test_longest_paths():
    nodes = [
        Node(n, 1, s, output_bytes=3)
        for n, s in zip("abcd", (0, 4, 1, 0), strict=True)
    ]
    graph = CostGraph(nodes, [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    work = [node.seconds for node in graph.nodes]
    assert timeline.longest_paths(graph, work) == [7, 6, 3, 1]
    sent = timeline.longest_paths(graph, work, lambda edge: edge.bytes)
    assert sent == [13, 9, 6, 1]


@laws.settings(max_examples=80)
@given(st.data())
def test_a_step_follows_its_rules(data):
    graph = data.draw(cost_graphs.graphs())
    devices = data.draw(cost_graphs.devices(3))
    place = data.draw(
        st.sampled_from(list(cost_graphs.placements(graph, devices)))
    )
    found = steps.step_time(graph, place, devices)
    inputs = _inputs(graph, place, devices, found)
    on_device = {name: [] for name in devices.names}
    for node in graph.nodes:
        for backward in (False, True):
            spans = found.backward if backward else found.forward
            begin, end = spans[node.name]
            seconds = (
                node.backward_seconds if backward else node.forward_seconds
            )
            home = place[node.name]
            assert end == pytest.approx(begin + seconds)
            ready = max(inputs[node.name, backward], default=0.0)
            assert begin >= ready - 1e-9
            on_device[home].append((begin, end, ready))
    for tasks in on_device.values():
        tasks.sort()
        free = 0.0
        for number, (begin, end, ready) in enumerate(tasks):
            # One at a time, never idle while something is ready, and what was
            # ready first runs first.
            assert begin == pytest.approx(max(free, ready))
            assert all(
                ready <= other + 1e-9
                for later, _, other in tasks[number + 1 :]
                if other < begin - 1e-9
            )
            free = end
    for name in devices.names:
        assert found.busy_seconds[name] == pytest.approx(
            sum(end - begin for begin, end, _ in on_device[name])
        )
    assert found.seconds == pytest.approx(
        max(end for some in on_device.values() for _, end, _ in some)
    )
    _check_links(devices, found)


def _inputs(graph, place, devices, found):
    """When what each pass waits for has come, from the transfers."""
    arrived = {}
    for t in found.transfers:
        key = t.node, t.backward, t.target
        arrived.setdefault(key, []).append(t.ends)
    inputs = {(n.name, back): [] for n in graph.nodes for back in (0, 1)}
    for node in graph.nodes:
        inputs[node.name, True].append(found.forward[node.name][1])
    for edge in graph.edges:
        producer, consumer = edge.producer, edge.consumer
        forward = found.forward[producer][1]
        back = found.backward[consumer][1]
        if place[producer] != place[consumer]:
            home = place[consumer]
            # Sent if anything of it is needed there.
            some = arrived.get((producer, False, home), [forward])
            assert len(some) == 1
            forward = some[0]
            if edge.gradient_bytes:
                sent = devices.transfer_seconds(edge.gradient_bytes)
                # Of gradients to one device each goes by itself.
                ends = arrived[consumer, True, place[producer]]
                begun, back = back, _own(graph, place, edge, ends)
                assert back >= begun + sent - 1e-9
        inputs[consumer, False].append(forward)
        inputs[producer, True].append(back)
    return inputs


def _own(graph, place, edge, ends):
    """Which of a node's gradients to one device is that of an edge."""
    same = [
        other.producer
        for other in graph.incoming[graph.index[edge.consumer]]
        if place[other.producer] == place[edge.producer]
        and other.gradient_bytes
    ]
    return sorted(ends)[same.index(edge.producer)]


def _check_links(devices, found):
    links = {}
    for t in found.transfers:
        source = found.backward if t.backward else found.forward
        sent = source[t.node][1]
        free = links.get((t.source, t.target), 0.0)
        # One after the other, and none waits without a reason.
        assert t.begins == pytest.approx(max(free, sent))
        links[t.source, t.target] = t.ends
        assert t.source != t.target
