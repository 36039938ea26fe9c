"""Assignments of some elements of a variable reach servers as others do."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.runtime.exchange import delay_test
import tfdist

# By way: how a step assigns the first element, and what eight steps make of
# its 0.
WAYS = {
    "slice": (lambda v: v[0:1].assign(v[0:1] + 1.0), 8.0),
    "scatter_nd_add": (lambda v: v.scatter_nd_add([[0]], [1.0]), 8.0),
    "scatter_nd_sub": (lambda v: v.scatter_nd_sub([[0]], [1.0]), -8.0),
    "scatter_nd_max": (lambda v: v.scatter_nd_max([[0]], [5.0]), 5.0),
    "scatter_nd_min": (lambda v: v.scatter_nd_min([[0]], [-5.0]), -5.0),
    "scatter_nd_update": (lambda v: v.scatter_nd_update([[0]], [3.0]), 3.0),
}


class Memory(keras.layers.Layer):
    """Has state for each way."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(4, 4), initializer="ones")
        self.state = {
            way: self.add_weight(
                shape=(2,), initializer="zeros", trainable=False, name=way
            )
            for way in WAYS
        }

    def call(self, x, training=False):
        if training:
            for way, (assign, _) in WAYS.items():
                assign(self.state[way].value)
        return x @ self.kernel


def trained(strategy, **arguments):
    with strategy.scope():
        layer = Memory()
        model = keras.Sequential([keras.Input((4,)), layer])
        model.compile(keras.optimizers.SGD(0.0), "mse", **arguments)
    x = np.ones((8, 4), "float32")
    model.fit(x, x, batch_size=1, verbose=0)
    return layer


@pytest.mark.parametrize(
    ("make", "arguments"),
    nightly.also(
        [(tfdist.AsyncStrategy, {})],
        [
            (tfdist.AsyncStrategy, {"run_eagerly": True}),
            (tfdist.DCASGDStrategy, {}),
            (lambda: tfdist.ParameterAveragingStrategy(2), {}),
        ],
    ),
)
def test_elements_that_steps_and_the_chief_assign_are_on_servers(
    make, arguments
):
    strategy = make()
    layer = trained(strategy, **arguments)
    strategy.pull()
    found = {way: layer.state[way].numpy().tolist() for way in WAYS}
    assert found == {way: [value, 0.0] for way, (_, value) in WAYS.items()}
    layer.kernel.value[0:1, 1].assign([7.0])
    layer.kernel.value.scatter_nd_add([[2, 3]], [1.0])
    strategy.pull()
    expected = np.ones((4, 4))
    expected[0, 1], expected[2, 3] = 7.0, 2.0
    np.testing.assert_array_equal(layer.kernel.numpy(), expected)


class Largest(keras.layers.Layer):
    """Keeps the largest input that workers have seen, and a value of its own.

    In place of assignments of weights, whose changes eager steps add up.
    """

    def build(self, shape):
        self.largest = self.add_weight(
            shape=(1,), initializer="zeros", trainable=False
        )
        self.factor = tf.Variable(0.0, trainable=False)

    def call(self, x, training=False):
        if training:
            self.factor.assign(0.5)
            peak = tf.IndexedSlices(
                keras.ops.max(x)[None], tf.constant([0], tf.int32)
            )
            self.largest.value.scatter_max(peak)
        return x


@pytest.mark.nightly
@pytest.mark.parametrize("eagerly", [False, True])
def test_maxima_and_own_values_of_several_workers_do_not_add_up(eagerly):
    workers = [
        delay_test.VirtualWorker(f"largest/{eagerly}", number)
        for number in range(2)
    ]
    for worker in workers:
        worker.build(lambda: keras.optimizers.SGD(0.0), [Largest])
        worker.model.run_eagerly = eagerly
        worker.runtime.commit()
    for worker, value in zip(workers, (3.0, 2.0), strict=True):
        x = np.full([4, delay_test.FEATURES], value, "float32")
        worker.step(x, x[:, :1])
    for worker in workers:
        worker.runtime.pull()
        layer = worker.model.layers[0]
        assert layer.largest.numpy().tolist() == [3.0]
        assert layer.factor.numpy() == 0.5


def test_elements_are_refused_where_other_assignments_are():
    with tfdist.AsyncStrategy().scope():
        weight = keras.Variable(np.zeros(2, "float32")).value
    for assign, _ in WAYS.values():
        with pytest.raises(RuntimeError, match="outside strategy.run"):
            tf.function(assign, autograph=False)(weight)
    slices = tf.IndexedSlices(tf.ones([1]), tf.constant([0]))
    with pytest.raises(NotImplementedError, match="scatter_nd_update"):
        weight.batch_scatter_update(slices)
    assert weight.numpy().tolist() == [0.0, 0.0]
