"""What is read once for all rules of an update, and what is not."""

import keras
import tensorflow as tf

import tfdist
from tfdist.runtime.exchange import exchange
from tfdist.runtime.variables import server_scope


def test_a_counter_is_read_once_in_each_graph_of_an_update():
    """A branch may not use what another has read."""
    scope = server_scope.ServerScope(None, 0, None)
    one, other = tf.Variable(1), tf.Variable(2)
    with tf.Graph().as_default():

        def read(variable):
            return scope.read_counter(variable, lambda: tf.constant(0))

        assert read(one) is not read(one)
        with scope.counters_read_once():
            first = read(one)
            assert read(one) is first
            assert read(other) is not first
            with tf.Graph().as_default():
                assert read(one) is not first
            assert read(one) is first
        assert read(one) is not first


def test_the_rules_of_all_variables_share_one_reading(monkeypatch):
    readings = []
    read_counter = server_scope.ServerScope.read_counter

    def noted(scope, variable, read):
        readings.append(read_counter(scope, variable, read))
        return readings[-1]

    monkeypatch.setattr(server_scope.ServerScope, "read_counter", noted)
    with tfdist.AsyncStrategy().scope():
        model = keras.Sequential(
            [keras.layers.Input((2,)), *map(keras.layers.Dense, (3, 3, 1))]
        )
        model.compile("adam", "mse")
    model.fit(tf.ones([4, 2]), tf.ones([4, 1]), batch_size=2, verbose=0)
    assert len(readings) == len(model.trainable_variables)
    assert len({id(reading) for reading in readings}) == 1
    assert int(model.optimizer.iterations) == 2


def test_servers_wait_for_what_they_are_sent_alone(monkeypatch):
    """Each other operation that they waited for would be another message."""
    early = []
    build = exchange.ExchangeBuilder.build

    def noted(builder):
        graph = tf.compat.v1.get_default_graph()
        older = set(graph.get_operations())
        build(builder)
        early.extend(
            operation.name.rpartition("/")[-1]
            for operation in graph.get_operations()
            if operation not in older and older & set(operation.control_inputs)
        )

    monkeypatch.setattr(exchange.ExchangeBuilder, "build", noted)
    with tfdist.AsyncStrategy().scope():
        model = keras.Sequential(
            [keras.layers.Input((2,)), keras.layers.Dense(1)]
        )
        model.compile("adam", "mse")
    model.fit(tf.ones([4, 2]), tf.ones([4, 1]), batch_size=2, verbose=0)
    # Both on this worker; the rest follows them.
    assert early == ["NoOp", "Timestamp"]
