"""The graph of a synchronous pipeline's step: who waits for whom, and where."""

import functools
import itertools
import re

import keras
from keras import layers
import pytest
import tensorflow as tf

from tests.pipeline import models
from tfdist.pipeline import pipeline
from tfdist.pipeline import schedules

DEVICES = ["CPU:0", "CPU:1", "CPU:2"]
SCHEDULES = schedules.SYNCHRONOUS


def graph_of(schedule, micro_batches, model=None, frozen=None, **options):
    """(graph, model) of a step of the convnet, or of a model as it is.

    Of the convnet, the layer that is called `frozen` is not trained.
    """
    if model is None:
        model = models.make("convnet")
        if frozen:
            model.get_layer(frozen).trainable = False
        pipeline(
            model,
            ["c", "e"],
            DEVICES,
            schedule=schedule,
            micro_batches=micro_batches,
            **options,
        )
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    specs = tf.TensorSpec((None, 6, 6, 2)), tf.TensorSpec((None, 3))
    function = tf.function(lambda *data: model.train_step(data))
    return function.get_concrete_function(*specs).graph, model


def operations_of(graph):
    """(kind, stage, unit) -> operations of the task."""
    found = {}
    for operation in graph.get_operations():
        # Gradients are named after what they are the gradients of.
        task = re.match(
            r"(gradient_tape/)?(forward|backward)_(\d+)_(\d+)/", operation.name
        )
        if task:
            gradient, kind, stage, unit = task.groups()
            kind = "backward" if gradient else kind
            found.setdefault((kind, int(stage), int(unit)), []).append(
                operation
            )
    return found


def descendants(operations):
    """Names of what cannot begin before these operations have ended."""
    found = set()
    waiting = list(operations)
    while waiting:
        operation = waiting.pop()
        after = [c for output in operation.outputs for c in output.consumers()]
        for other in [*after, *operation._control_outputs]:
            if other.name not in found:
                found.add(other.name)
                waiting.append(other)
    return found


@pytest.fixture(scope="module")
def graphs():
    """Makes `graph_of` a schedule and five micro-batches, once for each."""
    return functools.cache(
        lambda schedule, frozen=None: graph_of(schedule, 5, frozen=frozen)
    )


@pytest.fixture(params=SCHEDULES)
def traced(request, graphs):
    return request.param, *graphs(request.param)


@pytest.fixture(params=itertools.product(SCHEDULES, (None, "a")))
def ordered(request, graphs):
    """Also a first stage of which no backward has anything to do."""
    schedule, frozen = request.param
    graph, _ = graphs(schedule, frozen)
    return schedule, graph


def test_stages_hold_no_more_activations_than_the_schedule_says(ordered):
    """A forward that descends from a backward begins after its end."""
    schedule, graph = ordered
    operations = operations_of(graph)
    ended = {
        key: descendants([op for op in ops if op.name.endswith("/end")])
        for key, ops in operations.items()
    }
    held = []
    for stage in range(3):
        held.append(
            max(
                sum(
                    # Nothing says that `unit` has ended before `other` begins.
                    any(
                        op.name not in ended["backward", stage, unit]
                        for op in operations["forward", stage, other]
                    )
                    for other in range(unit, 5)
                )
                for unit in range(5)
            )
        )
    assert held == ([5, 5, 5] if schedule == "gpipe" else [3, 2, 1])


def test_a_stage_does_one_task_at_a_time(ordered):
    schedule, graph = ordered
    operations = operations_of(graph)
    for tasks in schedules.make(schedule, 3, 5).stages:
        tasks = [tuple(task) for task in tasks if task.kind != "update"]
        for task, following in itertools.pairwise(tasks):
            (end,) = [o for o in operations[task] if o.name.endswith("/end")]
            after = descendants([end])
            late = {op.name for op in operations[following]}
            assert late and late <= after, (task, following)


def test_stages_do_not_wait_for_each_other_more_than_they_must(traced):
    """While the last stage has a micro-batch, the first is at another."""
    _, graph, _ = traced
    operations = operations_of(graph)
    after = descendants(operations["forward", 2, 0])
    for op in operations["forward", 0, 1] + operations["forward", 1, 1]:
        assert op.name not in after


def test_everything_of_a_stage_is_on_its_device(traced):
    _, graph, model = traced
    for (_, stage, _), operations in operations_of(graph).items():
        assert len(operations) > 2
        for operation in operations:
            assert operation.device.endswith(DEVICES[stage]), operation.name
    for stage in model.stages:
        for variable in stage.variables:
            assert variable.value.device.endswith(DEVICES[stage.index])
    for slot in model.optimizer.variables:
        if slot.path.startswith("adam/e_"):
            assert slot.value.device.endswith(DEVICES[2])
    regularizers = [
        op for op in graph.get_operations() if op.type == "L2Loss"
    ] or [
        op
        for op in graph.get_operations()
        if op.type == "Square" and op.inputs[0].shape == (2, 3)
    ]
    assert {op.device[-5:] for op in regularizers} == {DEVICES[2]}


@pytest.mark.nightly
def test_no_gradients_are_computed_of_what_is_not_trained(graphs):
    """Of the input, and of layers before the first that is trained."""
    graph, model = graphs("1f1b")

    def used(graph, stage):
        return {
            operation.type
            for operation in operations_of(graph)["backward", stage, 0]
            # TensorFlow builds it in any case, and drops what leads nowhere.
            if operation.outputs
            and operation.outputs[0].consumers()
            or operation._control_outputs
        }

    assert "Conv2DBackpropFilter" in used(graph, 0) & used(graph, 1)
    assert "Conv2DBackpropInput" in used(graph, 1) - used(graph, 0)
    model.get_layer("a").trainable = False
    graph, _ = graph_of("1f1b", 5, model)
    model.get_layer("a").trainable = True
    assert "Conv2DBackpropFilter" in used(graph, 1)
    assert "Conv2DBackpropInput" not in used(graph, 1)


def kept(graph):
    """(stage, unit) of the backwards that use what their forward has made."""
    found = set()
    for (kind, stage, unit), operations in operations_of(graph).items():
        if kind == "backward":
            for operation in operations:
                for tensor in operation.inputs:
                    if tensor.op.name.startswith(f"forward_{stage}_{unit}/"):
                        found.add((stage, unit))
    return found


@pytest.mark.nightly
def test_recomputation_keeps_nothing_but_inputs(graphs):
    graph, _ = graphs("gpipe")
    assert kept(graph) == {
        (stage, unit) for stage in range(3) for unit in range(5)
    }
    # The last forward of GPipe is that of the first backward.
    graph, _ = graph_of("gpipe", 3, recompute=True)
    assert kept(graph) == {(stage, 2) for stage in range(3)}
    for operations in operations_of(graph).values():
        for operation in operations:
            assert operation.device, operation.name
    graph, _ = graph_of("1f1b", 3, recompute=True)
    assert kept(graph) == {(2, unit) for unit in range(3)}


class Counted(layers.Layer):
    """Counts how often it is computed, not how often it is built."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.computed = 0

    def call(self, inputs):
        def count(array):
            self.computed += 1
            return array

        @tf.custom_gradient
        def counted(tensor):
            # Not stateful: TensorFlow may drop or merge what is the same.
            result = tf.numpy_function(
                count, [tensor], tensor.dtype, stateful=False
            )
            return tf.ensure_shape(result, tensor.shape), lambda dy: dy

        return counted(inputs)


@pytest.mark.nightly
@pytest.mark.parametrize("recompute, expected", [(False, 3), (True, 5)])
def test_recomputation_is_not_optimized_away(recompute, expected):
    layer = Counted()
    # The gradient of the layer behind it needs what it computes.
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(5),
            layer,
            layers.Dense(4),
            layers.Dense(3, name="out"),
        ]
    )
    pipeline(model, ["out"], micro_batches=3, recompute=recompute)
    model.compile("sgd", "mse")
    x, y, _ = models.data("skip", 6)
    model.fit(x, y, batch_size=6, epochs=1, verbose=0)
    # All but the last forward, whose backward follows at once.
    assert layer.computed == expected
