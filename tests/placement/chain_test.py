"""Stages against brute force over all of them."""

import functools
import itertools
import math
import re

from hypothesis import given
from hypothesis import strategies as st
import pytest

from tests import laws
from tests.placement import cost_graphs
from tfdist.pipeline import pipelined
from tfdist.placement import chain
from tfdist.placement.chain import Pipeline
from tfdist.placement.chain import partition_chain
from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Devices
from tfdist.placement.graph import Edge
from tfdist.placement.graph import Node
from tfdist.placement.memory import PlacementError

pipelines = (
    st.builds(
        Pipeline,
        st.sampled_from(["gpipe", "1f1b"]),
        st.integers(1, 4),
        st.booleans(),
        st.integers(1, 3),
    )
    | st.builds(
        Pipeline,
        st.sampled_from(["pipedream", "pipedream_2bw"]),
        st.integers(1, 4),
        st.booleans(),
    )
    | st.builds(Pipeline, st.sampled_from(["1f1b", "pipedream"]), st.none())
)


def partitions(size, devices, replicas):
    """All (layers, numbers of devices) of stages, contiguous and in order."""
    for count in range(1, min(size, devices) + 1):
        for inner in itertools.combinations(range(1, size), count - 1):
            ends = (0, *inner, size)
            for chosen in itertools.product(
                range(1, replicas + 1), repeat=count
            ):
                for firsts in itertools.combinations(range(devices), count):
                    used = [
                        range(f, f + r)
                        for f, r in zip(firsts, chosen, strict=True)
                    ]
                    apart = all(
                        a.stop <= b.start for a, b in itertools.pairwise(used)
                    )
                    if apart and used[-1].stop <= devices:
                        layers = [
                            range(*pair) for pair in itertools.pairwise(ends)
                        ]
                        yield list(zip(layers, used, strict=True))


def link(devices, size):
    return size and devices.latency_seconds + size / devices.bytes_per_second


def costs(graph, devices, pipeline, stages):
    """Seconds of each stage and cut, and bytes of each stage."""
    compute, cuts, sizes = [], [], []
    machines = [len(used) for _, used in stages]
    for number, (layers, used) in enumerate(stages):
        nodes = [graph.nodes[layer] for layer in layers]
        replicas = len(used)
        seconds = sum(n.forward_seconds + n.backward_seconds for n in nodes)
        if pipeline.recompute:
            seconds += sum(n.forward_seconds for n in nodes)
        weights = sum(n.weight_bytes for n in nodes)
        if replicas > 1:
            # Micro-batches in turn, and then one all-reduce for all of them.
            batch = pipeline.micro_batches
            shares = [len(range(n, batch, replicas)) for n in range(replicas)]
            ring = link(devices, weights / replicas) * 2 * (replicas - 1)
            seconds = (max(shares) * seconds + ring) / batch
        compute.append(seconds)
        received = 0
        if number:
            edge = graph.edges[layers.start - 1]
            received = edge.bytes
            cuts.append(
                link(devices, edge.bytes) + link(devices, edge.gradient_bytes)
            )
        behind = sum(machines[number:])
        flying = pipeline.micro_batches or behind
        if pipeline.schedule != "gpipe":
            flying = min(behind, flying)
        flying = -(-flying // replicas)
        versions = {"pipedream": flying, "pipedream_2bw": 2}.get(
            pipeline.schedule, 1
        )
        activations = sum(n.activation_bytes for n in nodes)
        sizes.append(
            sum(n.resident_bytes for n in nodes)
            + (versions - 1) * weights
            + (1 if pipeline.recompute else flying) * activations
            + flying * received
        )
    return compute, cuts, sizes


def brute_force(graph, devices, pipeline, objective):
    """The least objective of all partitions that fit, infinite if none."""
    combine = max if objective == "throughput" else lambda *some: sum(some)
    best = math.inf
    most = min(pipeline.max_replicas, pipeline.micro_batches or math.inf)
    for stages in partitions(len(graph.nodes), len(devices), most):
        stage_of = {
            str(layer): number
            for number, (layers, _) in enumerate(stages)
            for layer in layers
        }
        torn = any(
            len({stage_of[name] for name in group}) > 1
            for group in graph.colocated
        )
        compute, cuts, sizes = costs(graph, devices, pipeline, stages)
        fits = all(
            size <= devices.limit(device)
            for size, (_, used) in zip(sizes, stages, strict=True)
            for device in used
        )
        if fits and not torn:
            best = min(best, combine(*compute, *cuts, 0))
    return best


def check(graph, devices, pipeline, objective):
    expected = brute_force(
        graph, devices, pipeline or Pipeline(micro_batches=1), objective
    )
    if expected == math.inf:
        with pytest.raises(PlacementError, match="bytes short"):
            partition_chain(graph, devices, objective, pipeline)
        return
    found = partition_chain(graph, devices, objective, pipeline)
    assert found.seconds == pytest.approx(expected)
    # And the stages are such that they cost and hold what is said.
    numbers = {name: number for number, name in enumerate(devices.names)}
    stages = [
        ([int(name) for name in s.nodes], [numbers[d] for d in s.devices])
        for s in found.stages
    ]
    assert sum((layers for layers, _ in stages), []) == list(
        range(len(graph.nodes))
    )
    used = sum((used for _, used in stages), [])
    assert used == sorted(set(used))
    ranges = [
        (range(layers[0], layers[-1] + 1), used) for layers, used in stages
    ]
    compute, cuts, sizes = costs(
        graph, devices, pipeline or Pipeline(micro_batches=1), ranges
    )
    assert [s.seconds for s in found.stages] == pytest.approx(compute)
    assert [s.transfer_seconds for s in found.stages] == pytest.approx(
        [*cuts, 0]
    )
    assert [s.bytes for s in found.stages] == sizes
    for size, (_, used) in zip(sizes, stages, strict=True):
        assert all(size <= devices.limit(device) for device in used)


@pytest.mark.nightly
@laws.settings(max_examples=60)
@given(cost_graphs.chains(8), cost_graphs.devices(4), pipelines)
def test_stages_are_the_best_of_all_that_fit(graph, devices, pipeline):
    check(graph, devices, pipeline, "throughput")


@laws.settings(max_examples=60)
@given(
    cost_graphs.chains(8),
    cost_graphs.devices(4, st.integers(10, 60)),
    st.sampled_from(["throughput", "step"]),
)
def test_stages_without_a_pipeline_are_the_best_of_all(
    graph, devices, objective
):
    check(graph, devices, None, objective)


@laws.settings(max_examples=40)
@given(
    cost_graphs.chains(8),
    st.integers(1, 4),
    st.sampled_from([0.5, 1, 4]),
    st.sampled_from([12, 24]),
)
def test_replicas_as_in_the_recursion_of_pipedream(
    graph, machines, rate, batch
):
    # As published, from the first layer to the last; no groups there. But
    # gradients are summed once per batch, of which all have as much.
    graph = CostGraph(graph.nodes, graph.edges)
    nodes, edges = graph.nodes, graph.edges

    def stage(i, j, m):
        computing = sum(n.seconds for n in nodes[i : j + 1])
        weights = sum(n.weight_bytes for n in nodes[i : j + 1])
        return computing / m + 2 * (m - 1) * weights / (m * rate) / batch

    @functools.cache
    def slowest(j, m):
        best = stage(0, j, m)
        for i in range(j):
            cut = (edges[i].bytes + edges[i].gradient_bytes) / rate
            for m_last in range(1, m):
                best = min(
                    best,
                    max(slowest(i, m - m_last), cut, stage(i + 1, j, m_last)),
                )
        return best

    devices = Devices(tuple("ABCD"[:machines]), bytes_per_second=rate)
    found = partition_chain(
        graph,
        devices,
        pipeline=Pipeline(micro_batches=batch, max_replicas=machines),
    )
    # Fewer machines are allowed too.
    fewest = min(slowest(len(nodes) - 1, m) for m in range(1, machines + 1))
    assert found.seconds == pytest.approx(fewest)


@laws.settings(max_examples=60)
@given(
    cost_graphs.chains(6), cost_graphs.devices(3, st.integers(0, 9)), pipelines
)
def test_the_error_says_exactly_how_much_is_short(graph, devices, pipeline):
    try:
        partition_chain(graph, devices, pipeline=pipeline)
    except PlacementError as error:
        short = int(re.search(r"is (\d+) bytes short", str(error))[1])
    else:
        return

    def with_more(size):
        limits = tuple(limit + size for limit in devices.memory_limits)
        return Devices(devices.names, limits)

    partition_chain(graph, with_more(short), pipeline=pipeline)
    with pytest.raises(PlacementError):
        partition_chain(graph, with_more(short - 1), pipeline=pipeline)


def test_the_error_counts_replicas_where_they_help():
    # All 4 of 10 bytes on one device, or 2 on each of two replicas.
    graph = cost_graphs.chain(1, activation_bytes=10)
    pipeline = Pipeline("gpipe", 4, max_replicas=2)
    with pytest.raises(
        PlacementError, match="5 bytes short: '0' needs 20 bytes with 2 micro"
    ):
        partition_chain(graph, Devices(("A", "B"), 15), pipeline=pipeline)


@pytest.mark.parametrize("schedule", chain.SCHEDULES)
def test_every_plan_is_one_that_the_pipeline_takes(schedule):
    names = ("CPU:0", "CPU:1", "CPU:2", "CPU:3")
    options = pipelined.PipelineOptions(micro_batches=2, schedule=schedule)
    if schedule in chain.SYNCHRONOUS:
        pipeline = Pipeline(schedule, 2, max_replicas=3)
        found = partition_chain(
            cost_graphs.chain(4, 1), Devices(names), pipeline=pipeline
        )
        # With two micro-batches a third replica would have none.
        assert len(found.stages[0].devices) == 2
        pipelined.check(options, [stage.devices for stage in found.stages])
    else:
        with pytest.raises(
            ValueError, match="`max_replicas` of Pipeline must be 1"
        ):
            Pipeline(schedule, 2, max_replicas=2)
        with pytest.raises(ValueError, match="replicas"):
            pipelined.check(options, [names[:2]])


def test_fewer_devices_if_more_do_not_help():
    # The middle one takes 4 whatever is done; two stages reach that.
    graph = cost_graphs.chain(2, 2, 4)
    found = partition_chain(graph, Devices(("A", "B", "C", "D")))
    assert [stage.nodes for stage in found.stages] == [("0", "1"), ("2",)]
    assert [stage.devices for stage in found.stages] == [("A",), ("B",)]
    assert found.placement == {"0": "A", "1": "A", "2": "B"}


def test_what_skips_a_stage_is_handed_on_through_it():
    # a -> b -> c, and a -> c; each on its own device.
    nodes = [Node(name, 6, output_bytes=2) for name in "abc"]
    graph = CostGraph(nodes, [Edge("a", "b"), Edge("b", "c"), Edge("a", "c")])
    devices = Devices(("A", "B", "C"), bytes_per_second=1)
    found = partition_chain(graph, devices)
    # One tensor over the first cut, two over the second, there and back.
    assert [s.transfer_seconds for s in found.stages] == [4, 8, 0]
    assert [s.bytes for s in found.stages] == [0, 2, 4]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Pipeline("zb"),
            "`schedule` of Pipeline must be one of .*Received: schedule='zb'",
        ),
        (
            lambda: Pipeline("gpipe"),
            "`micro_batches` of Pipeline must be g",
        ),
        (
            lambda: Pipeline("pipedream", 8, max_replicas=2),
            "`max_replicas` of Pipeline must be 1 with 'pipedream'.*"
            "Received: max_replicas=2",
        ),
        (
            lambda: Pipeline("1f1b", max_replicas=2),
            "of Pipeline must be given with max_replicas=2",
        ),
        (
            lambda: partition_chain(
                cost_graphs.chain(1), Devices(("A",)), "speed"
            ),
            "`objective` must be one of .*Received: objective='speed'",
        ),
        (
            lambda: partition_chain(
                cost_graphs.chain(1), Devices(("A",)), "step", Pipeline()
            ),
            "`objective` must be 'throughput' with a pipeline",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
