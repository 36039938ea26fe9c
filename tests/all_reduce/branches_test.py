"""Choices between functions: values, variables, and what is refused."""

import pytest
import tensorflow as tf

from tfdist.all_reduce import branches


@pytest.mark.parametrize("condition", [True, False])
def test_one_of_both_is_called(condition):
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
        found = branches.choose(condition, then, otherwise, [x, handle])
        assert found[0].shape == [2]
        return *found, variable.read_value()

    y, number, after = choose(tf.constant(condition))
    assert y.numpy().tolist() == ([13.0, 14.0] if condition else [3.0, 4.0])
    assert number.numpy().tolist() == ([2] if condition else [0])
    assert after.numpy().tolist() == ([4.0, 6.0] if condition else [-3.0, -4.0])


def test_without_results():
    variable = tf.Variable(0.0)

    @tf.function
    def choose(condition):
        return branches.choose(
            condition,
            lambda x: [variable.assign_add(x)][1:],
            lambda x: [],
            [tf.constant(2.0)],
        )

    assert choose(tf.constant(False)) == []
    assert choose(tf.constant(True)) == []
    assert variable.numpy() == 2.0


def test_what_the_second_would_capture_is_refused():
    variable = tf.Variable(0.0)

    @tf.function
    def choose(condition):
        branches.choose(
            condition, lambda x: [x], lambda x: [variable + x], [tf.ones([])]
        )

    with pytest.raises(AssertionError, match="uses"):
        choose(tf.constant(True))
