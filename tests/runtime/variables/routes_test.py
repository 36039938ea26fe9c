"""Ids are sent to their servers once for a look-up and its gradient."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.runtime.variables import routes


def place(ids):
    """Even ids are on server 0, odd ones on server 1."""
    return ids % 2, ids // 2


@pytest.mark.parametrize("num_servers", [1, 2, 3])
def test_parts_make_the_whole_again(num_servers):
    random = np.random.default_rng(num_servers)
    server = random.integers(0, num_servers, 50)
    asked = tf.constant(random.integers(0, 1000, 50))
    values = random.normal(size=(50, 3))
    route = routes.build(tf.constant(server), asked, num_servers)
    parts = [route.part(k, tf.constant(values)) for k in range(num_servers)]
    for k in range(num_servers):
        here = server == k
        np.testing.assert_array_equal(route.asked[k], asked.numpy()[here])
        np.testing.assert_array_equal(parts[k], values[here])
    np.testing.assert_array_equal(route.join(parts, 3), values)


def test_a_graph_has_one_route_of_the_same_ids():
    with tf.Graph().as_default() as graph:
        ids = tf.constant([4, 7, 1], name="ids")
        route = routes.of_ids(place, ids, 2)
        same = tf.identity(tf.stop_gradient(ids))
        assert routes.of_ids(place, same, 2) is route
        assert routes.of_ids(place, ids + 0, 2) is not route

        @tf.function(autograph=False)
        def branch(ids):
            # Of the same name, in a graph that begins with what the other
            # one knows.
            assert routes.of_ids(place, ids, 2).asked[0].graph is not graph
            return ids

        branch.get_concrete_function(tf.TensorSpec([3], tf.int32, "ids"))
