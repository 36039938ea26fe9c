"""Choices between functions: values, variables, and devices."""

import pytest
import tensorflow as tf

from tfdist.all_reduce import branches
from tfdist.all_reduce import nonfinite

BUILDS = pytest.mark.parametrize("build", [branches.whole, branches.lowered])


@BUILDS
@pytest.mark.parametrize("condition", [True, False])
def test_one_of_both_is_called(condition, build):
    variable = tf.Variable([1.0, 2.0])
    handle = variable.handle

    def then(x, handle):
        variable.assign_add(x)
        return [x + 10.0, tf.shape(x)]

    def otherwise(x, handle):
        tf.raw_ops.AssignVariableOp(resource=handle, value=-x)
        return [x, tf.zeros([1], tf.int32)]

    @tf.function
    def choose(condition):
        x = tf.constant([3.0, 4.0])
        found = build(condition, then, otherwise, [x, handle])
        assert found[0].shape == [2]
        return *found, variable.read_value()

    y, number, after = choose(tf.constant(condition))
    assert y.numpy().tolist() == ([13.0, 14.0] if condition else [3.0, 4.0])
    assert number.numpy().tolist() == ([2] if condition else [0])
    assert after.numpy().tolist() == ([4.0, 6.0] if condition else [-3.0, -4.0])


@BUILDS
def test_without_results(build):
    variable = tf.Variable(0.0)

    @tf.function
    def choose(condition):
        return build(
            condition,
            lambda x: [variable.assign_add(x)][1:],
            lambda x: [],
            [tf.constant(2.0)],
        )

    assert choose(tf.constant(False)) == []
    assert choose(tf.constant(True)) == []
    assert variable.numpy() == 2.0


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_may_use_variables_of_several_devices(condition):
    # As an int32 beside weights on a GPU, which has no such variables.
    here = tf.Variable(1)
    with tf.device("CPU:1"):
        there = tf.Variable(2.0)

    @tf.function
    def choose(condition):
        return branches.lowered(
            condition,
            lambda x: [there.assign_add(x), here.assign_add(1)],
            lambda x: [there - x, here - 1],
            [tf.constant(3.0)],
        )

    found = [each.numpy() for each in choose(tf.constant(condition))]
    assert found == ([5.0, 2] if condition else [-1.0, 0])


STRING = tf.string.as_datatype_enum


def operations(graph):
    """All operations of a graph and of the functions that it calls."""
    for definition in [graph, *(f.node_def for f in graph.library.function)]:
        yield from getattr(definition, "node", definition)


def test_a_branch_must_use_nothing_but_its_arguments():
    variable = tf.Variable(0.0)

    @tf.function
    def choose():
        return branches.whole(
            tf.constant(True),
            lambda x: [x],
            lambda x: [x + variable],
            [tf.constant(2.0)],
        )

    with pytest.raises(AssertionError, match="uses"):
        choose()


@pytest.mark.parametrize("choice", ["drop", "fail"])
def test_what_only_a_processor_can_is_placed_there(monkeypatch, choice):
    """A kernel `If` would run all of a branch on the device of its input."""
    monkeypatch.setattr(branches, "whole", branches.lowered)
    device = tf.config.list_logical_devices("CPU")[0].name
    check = nonfinite.FiniteCheck(choice, "/job:worker/task:0", device)

    @tf.function
    def checked(x):
        kept, _ = check.checked(
            [x], list, ["x"], lambda vectors: [0.0 * vectors[0]]
        )
        return kept

    graph = checked.get_concrete_function(tf.TensorSpec([2])).graph
    kinds = {"PyFunc", "EagerPyFunc", "StringJoin", "ReduceJoin", "Assert"}
    found = list(operations(graph.as_graph_def()))
    places = [
        node.device
        for node in found
        if node.op in kinds
        or (node.op == "Const" and node.attr["dtype"].type == STRING)
    ]
    assert places and all(each.endswith(device) for each in places)
    choices = [n for n in found if n.op in ("If", "StatelessIf")]
    assert choices
    assert all(n.attr["_lower_using_switch_merge"].b for n in choices)
