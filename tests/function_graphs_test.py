"""Variables that functions assign which a graph calls."""

import pytest
import tensorflow as tf

from tfdist import function_graphs


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize(
    "how", ["at once", "deeper", "branch", "loop", "branch of the step"]
)
def test_a_variable_is_known_that_a_function_assigns(is_nested, how):
    assigned, read = tf.Variable(0.0), tf.Variable(0.0)
    found = []

    @tf.function
    def assign():
        return assigned.assign_add(1.0 + read)

    @tf.function
    def inner():
        zero = tf.zeros([])
        if how == "branch":
            tf.cond(zero + read < 1.0, assign, lambda: zero)
        elif how == "loop":
            tf.while_loop(lambda x: x < 1.0, lambda x: x + assign(), [zero])
        elif how == "deeper":
            assign()
        else:
            assigned.assign_add(1.0 + read)

    @tf.function
    def step():
        graph = tf.compat.v1.get_default_graph()

        def look(first=0):
            found[:] = function_graphs.assigned_by_functions(
                graph, [assigned.handle, read.handle], first
            )

        value = read + 1.0
        look()
        assert found == [False, False]
        number = len(graph.get_operations())
        if how == "branch of the step":
            tf.cond(value < 9.0, lambda: [inner(), value][1], lambda: value)
        else:
            inner()
        look(number)
        assert found == [True, False]
        look(len(graph.get_operations()))
        assert found == [False, False]
        return value

    # Traced before, so that nothing of it is traced in the step.
    inner()
    tf.function(lambda: step())() if is_nested else step()
    assert found == [False, False]
    assert float(assigned) == 2.0
