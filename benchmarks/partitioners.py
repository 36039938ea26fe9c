"""How long the partitioners take, and how good what they find is.

    python benchmarks/partitioners.py [--quick]

Cost graphs of 200 nodes: a chain, a DAG with branches as Inception's modules
have them, and an LSTM of several layers over time chunks, each with memory for
all on one device and with so little that it takes all devices. For each method
seconds to place, and the simulated step time as a share of that of one device
without a limit; the bound is what no placement can be faster than. For
pipelines of the chain, the slowest stage.

Nothing is measured but the time to place: costs and devices are made up, of
the size that a GPU and PCIe have.
"""

import time

from absl import flags
from harness import program
import numpy as np

from tfdist import tables
from tfdist.placement import chain
from tfdist.placement import memory
from tfdist.placement import timeline
from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Devices
from tfdist.placement.graph import Edge
from tfdist.placement.graph import Node
from tfdist.placement.partition import partition

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Fewer evaluations of the search.")
flags.DEFINE_integer("devices", 4, "Number of devices.", lower_bound=1)
flags.DEFINE_integer("nodes", 200, "Of each graph, about.", lower_bound=20)
flags.DEFINE_integer("seed", 0, "Of the costs and of the search.")

METHODS = ("chain", "topo", "etf", "sct", "auto", "search")
EVALUATIONS, QUICK_EVALUATIONS = 5000, 1000
SLACK = 1.4
"""Memory of all devices when it is short, times what the model takes."""


def main():
    """Places, prints a table and a line of JSON."""
    rng = np.random.default_rng(FLAGS.seed)
    graphs = {
        "chain": chain_graph(FLAGS.nodes, rng),
        "inception": inception_graph(FLAGS.nodes, rng),
        "lstm": lstm_graph(FLAGS.nodes, rng),
    }
    found, rows = {}, []
    for name, graph in graphs.items():
        for limit in ("ample", "short"):
            row = f"{name}, {limit}"
            found[row] = measure(graph, limit)
            cells = [_cell(found[row][method]) for method in METHODS]
            title = f"{row} ({len(graph.nodes)} nodes)"
            rows.append([title, *cells, f"{found[row]['bound']:.3f}"])
    title = "step / one device (seconds to place)"
    print(tables.aligned([title, *METHODS, "bound"], rows))
    stages = measure_pipelines(graphs["chain"])
    rows = [
        [
            name,
            f"{cell['share']:.3f}",
            str(cell["stages"]),
            f"{cell['seconds_to_place']:.2f} s",
        ]
        for name, cell in stages.items()
    ]
    titles = ["slowest stage / one device", "share", "stages", "to place"]
    print(f"\n{tables.aligned(titles, rows)}")
    program.report("partitioners", step=found, pipeline=stages)


def _cell(cell):
    if cell["share"] is None:
        return "none fits"
    return f"{cell['share']:.3f} ({cell['seconds_to_place']:.2f})"


def measure(graph, limit):
    """What each method does with a graph, a dict.

    Args:
        graph: a `CostGraph`.
        limit: "ample" or "short".
    """
    devices = make_devices(graph, limit)
    seconds = [node.seconds for node in graph.nodes]
    one = sum(seconds)
    # The longest way without transfers, and all work shared without a pause.
    bound = max(*timeline.longest_paths(graph, seconds), one / len(devices))
    found = {"bound": round(bound / one, 4)}
    evaluations = QUICK_EVALUATIONS if FLAGS.quick else EVALUATIONS
    for method in METHODS:
        began = time.perf_counter()
        try:
            result = partition(
                graph,
                devices,
                method,
                evaluations=evaluations,
                seed=FLAGS.seed,
            )
        except memory.PlacementError:
            share = None
        else:
            share = round(result.seconds / one, 4)
        found[method] = {
            "share": share,
            "seconds_to_place": round(time.perf_counter() - began, 3),
        }
    return found


def measure_pipelines(graph):
    """Stages of a chain, a dict."""
    one = sum(node.seconds for node in graph.nodes)
    found = {}
    for name, pipeline in {
        "gpipe, 8 micro-batches": chain.Pipeline("gpipe", 8),
        "1f1b": chain.Pipeline("1f1b"),
        "1f1b, 8, with replicas": chain.Pipeline(
            "1f1b", 8, max_replicas=FLAGS.devices
        ),
    }.items():
        began = time.perf_counter()
        result = partition(
            graph, make_devices(graph, "ample"), pipeline=pipeline
        )
        found[name] = {
            "share": round(result.seconds / one, 4),
            "stages": len(result.stages),
            "seconds_to_place": round(time.perf_counter() - began, 3),
        }
    return found


def make_devices(graph, limit):
    """GPUs that are joined by PCIe."""
    names = [f"GPU:{number}" for number in range(FLAGS.devices)]
    total = sum(n.resident_bytes + n.activation_bytes for n in graph.nodes)
    bytes_each = int(SLACK * total / len(names)) if limit == "short" else None
    return Devices(
        tuple(names), bytes_each, latency_seconds=2e-5, bytes_per_second=12e9
    )


def node(name, rng, scale=1.0):
    """A node of about a millisecond and a megabyte of output, at random."""
    forward = scale * 1e-3 * rng.lognormal(0.0, 0.5)
    weights = int(scale * 4e6 * rng.lognormal(0.0, 1.0))
    output = int(scale * 1e6 * rng.lognormal(0.0, 0.5))
    return Node(
        name, forward, 2 * forward, 4 * weights, 2 * output, output, weights
    )


def chain_graph(size, rng):
    """Layer after layer."""
    nodes = [node(f"layer_{number}", rng) for number in range(size)]
    names = [each.name for each in nodes]
    return CostGraph(nodes, zip(names, names[1:], strict=False))


def inception_graph(size, rng):
    """Modules of four branches of 1, 2, 3 and 1 nodes, and what joins them."""
    nodes, edges = [node("stem", rng)], []
    while len(nodes) + 8 <= size:
        entry, module = nodes[-1].name, len(nodes)
        nodes_of, ends = [], []
        for branch, length in enumerate((1, 2, 3, 1)):
            before = entry
            for number in range(length):
                name = f"module_{module}/branch_{branch}/{number}"
                nodes_of.append(node(name, rng))
                edges.append(Edge(before, name))
                before = name
            ends.append(before)
        joined = node(f"module_{module}/concat", rng, 0.1)
        nodes += [*nodes_of, joined]
        edges += [Edge(end, joined.name) for end in ends]
    return CostGraph(nodes, edges)


def lstm_graph(size, rng, layers=8):
    """Layers by time chunks; a layer's chunks share their weights."""
    chunks = max(2, size // layers)
    costs = [node(f"layer_{layer}", rng) for layer in range(layers)]
    nodes, edges, groups = [], [], []
    for layer, cost in enumerate(costs):
        names = [f"{cost.name}/chunk_{chunk}" for chunk in range(chunks)]
        for chunk, name in enumerate(names):
            # The first holds the weights of all.
            resident = 0 if chunk else cost.resident_bytes
            nodes.append(
                Node(
                    name,
                    cost.forward_seconds,
                    cost.backward_seconds,
                    resident,
                    cost.activation_bytes,
                    cost.output_bytes,
                )
            )
            if chunk:
                edges.append(Edge(names[chunk - 1], name))
            if layer:
                edges.append(Edge(f"layer_{layer - 1}/chunk_{chunk}", name))
        groups.append(names)
    return CostGraph(nodes, edges, groups)


if __name__ == "__main__":
    program.run(main)
