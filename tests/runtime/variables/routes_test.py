"""Ids are sent to their servers once for a look-up and its gradient."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.runtime.variables import partitions
from tfdist.runtime.variables import routes

PLACES = partitions.Partitions(5000, 2)


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
    with tf.Graph().as_default():
        ids = tf.constant([4, 7, 1])
        route = routes.of_ids(PLACES, ids)
        same = tf.identity(tf.stop_gradient(ids))
        assert routes.of_ids(PLACES, same) is route
        assert routes.of_ids(PLACES, ids + 0) is not route
        # Another table may have other rows of the same ids.
        other = partitions.Partitions(9000, 2)
        assert routes.of_ids(other, ids) is not route


def test_branches_have_routes_of_their_own():
    """No graph can use what is in a branch."""

    @tf.function(autograph=False)
    def branches(ids, same):
        around = routes.of_ids(PLACES, same)

        def branch():
            here = tf.compat.v1.get_default_graph()
            for given in (ids, same, ids + 0):
                route = routes.of_ids(PLACES, given)
                assert route is not around
                assert route.asked[0].graph is here
            return route.asked[0]

        tf.cond(tf.size(ids) > 2, branch, branch)
        assert routes.of_ids(PLACES, same) is around
        return routes.of_ids(PLACES, ids).asked[0]

    ids = tf.constant([4, 7, 1])
    branches(ids, ids)
