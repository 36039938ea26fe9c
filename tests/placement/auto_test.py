"""Costs of a model's layers, and placements that are found from them."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.placement import zoo
from tfdist import placement
from tfdist.placement import devices

DEVICES = ["CPU:1", "CPU:2"]


def graph_of(name, how):
    model, _ = zoo.build(name)
    x, _ = zoo.data(name, zoo.BATCH)
    if how == "measured":
        return model, placement.measure(model, x, repeats=1)
    return model, placement.estimate(model, zoo.BATCH)


@pytest.mark.parametrize("how", ["measured", "estimated"])
def test_the_costs_of_a_shared_layer_and_a_skip(how):
    model, graph = graph_of("skips", how)
    # Keras numbers the operations of all models in one process.
    plain = {n.name: n.name.split("_")[0] for n in graph.nodes}
    nodes = {plain[node.name]: node for node in graph.nodes}
    assert list(nodes) == ["a", "b", "c", "add", "joined", "d"]
    floats = 4
    weights = (5 * 6 + 6) * floats
    # Weights, their gradients, and Adam's two slots.
    assert nodes["a"].weight_bytes == weights
    assert nodes["a"].resident_bytes == 4 * weights
    assert nodes["a"].output_bytes == zoo.BATCH * 6 * floats
    assert nodes["joined"].output_bytes == zoo.BATCH * 17 * floats
    assert nodes["joined"].resident_bytes == 0
    assert all(node.forward_seconds > 0 for node in graph.nodes)
    edges = {
        (plain[e.producer], plain[e.consumer]): e.bytes for e in graph.edges
    }
    size = zoo.BATCH * 6 * floats
    assert edges == {
        ("a", "b"): size,
        ("b", "c"): size,
        ("c", "add"): size,
        ("a", "add"): size,
        ("b", "joined"): size,
        ("add", "joined"): size,
        ("joined", "d"): zoo.BATCH * 17 * floats,
    }


def test_calls_of_a_shared_layer_stay_together_and_weigh_once():
    _, graph = graph_of("shared", "estimated")
    assert graph.colocated == (("twice", "twice#2"),)
    nodes = {node.name: node for node in graph.nodes}
    assert nodes["twice#2"].resident_bytes == 0
    assert nodes["twice"].resident_bytes > 0


def test_measuring_changes_nothing():
    model, _ = zoo.build("convnet")
    keras.utils.set_random_seed(3)
    before = [v.numpy() for v in model.variables]
    placement.measure(model, zoo.data("convnet", 4)[0], repeats=1)
    for one, other in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_report_has_the_times_that_were_measured():
    model, graph = graph_of("shared", "measured")
    nodes = {node.name: node.seconds for node in graph.nodes}
    report = placement.report(model, costs=graph)
    rows = {row.path: row.seconds for row in report.rows}
    assert rows["twice"] == nodes["twice"] + nodes["twice#2"]
    assert rows["head"] == nodes["head"]
    shown = f"{1000 * nodes['head']:.2f}"
    assert any(
        line.startswith("head") and line.endswith(shown)
        for line in str(report).splitlines()
    )


def test_slots_are_those_of_the_optimizer():
    model, _ = zoo.build("mlp")
    for optimizer, slots in (
        (keras.optimizers.SGD(0.1), 0),
        (keras.optimizers.SGD(0.1, momentum=0.9), 1),
        (keras.optimizers.Adam(), 2),
    ):
        model.compile(optimizer, "mse")
        # A strategy with servers would make variables on them.
        with tf.variable_creator_scope(lambda *_, **__: pytest.fail("made")):
            node = placement.estimate(model).nodes[0]
        assert node.resident_bytes == (2 + slots) * node.weight_bytes


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    ["lstm", "nested", "shared", "transformer"],
)
def test_a_model_that_was_placed_automatically_computes_the_same(name):
    model, _ = zoo.build(name)
    x, _ = zoo.data(name, zoo.BATCH)
    expected = model.predict(x, verbose=0)
    costs = placement.estimate(model, zoo.BATCH)
    whole = sum(n.resident_bytes + n.activation_bytes for n in costs.nodes)
    # Too little for one device: it has to use both.
    largest = max(n.resident_bytes + n.activation_bytes for n in costs.nodes)
    limit = max(int(0.95 * whole), largest)
    found = placement.choose(model, DEVICES, memory_limit=limit, costs=costs)
    assert all(held <= limit for held in found.bytes.values())
    placement.place(model, "auto", DEVICES, memory_limit=limit, costs=costs)
    for path, device in found.placement.items():
        if "#" in path or path not in [x.name for x in model.layers]:
            continue
        own = model.get_layer(path).variables
        assert {v.value.device for v in own} <= {device}, path
    assert set(found.placement.values()) <= set(map(devices.resolve, DEVICES))
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, atol=1e-6)


def test_stages_of_a_pipeline_are_the_best_that_there_are():
    """Against all ways to cut the chain, with costs as they came."""
    model, graph = graph_of("convnet", "measured")
    found = placement.choose(
        model,
        placement.Devices(("/CPU:1", "/CPU:2")),
        costs=graph,
        objective="throughput",
    )
    seconds = [node.seconds for node in graph.nodes]
    best = min(
        max(sum(seconds[:cut]), sum(seconds[cut:]))
        for cut in range(len(seconds) + 1)
    )
    assert found.seconds == pytest.approx(best)
    order = [found.placement[node.name] for node in graph.nodes]
    assert len(list(itertools.groupby(order))) == len(set(order))


def test_refused():
    model, _ = zoo.build("mlp")
    with pytest.raises(ValueError, match="memory"):
        placement.place(model, "auto", DEVICES, memory_limit=10)
    with pytest.raises(ValueError, match="must be a device that exists"):
        placement.place(model, "auto", ["GPU:5"])
    with pytest.raises(ValueError, match="list of names"):
        placement.place(model, "auto", "CPU:1")
    with pytest.raises(ValueError, match="devices came with a placement by"):
        placement.place(model, {"first": "CPU:1"}, DEVICES)
    with pytest.raises(ValueError, match="`repeats` must be"):
        placement.measure(model, zoo.data("mlp")[0], repeats=0)
    other, _ = zoo.build("subclassed")
    with pytest.raises(ValueError, match="Sequential or functional"):
        placement.place(other, "auto", DEVICES)
    with pytest.raises(ValueError, match="has not"):
        placement.choose(model, DEVICES, costs=graph_of("skips", "")[1])
