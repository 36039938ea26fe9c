"""Local steps in programs that do more than one `fit` of one model."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
import tfdist
from tfdist import averaging

RATE, BATCH = 0.05, 4
X = np.random.default_rng(3).normal(size=(24, 3)).astype(np.float32)
Y = (X @ [[1.0], [2.0], [3.0]]).astype(np.float32)


def build(strategy, name="model"):
    with strategy.scope():
        kernel = keras.initializers.Constant(0.5)
        dense = keras.layers.Dense(
            1, use_bias=False, kernel_initializer=kernel, name=f"{name}_dense"
        )
        model = keras.Sequential([keras.Input([3]), dense], name=name)
        model.compile(keras.optimizers.SGD(RATE), "mse")
    return model


def plain(batches):
    """SGD of these batches, in NumPy."""
    weights = np.full(3, 0.5)
    for number in batches:
        rows = slice(number * BATCH, (number + 1) * BATCH)
        error = X[rows] @ weights - Y[rows, 0]
        weights = weights - RATE * 2 * X[rows].T @ error / BATCH
    return weights


def weights_of(model):
    return model.get_weights()[0][:, 0]


def fit(model, first, number):
    rows = slice(first * BATCH, (first + number) * BATCH)
    model.fit(X[rows], Y[rows], batch_size=BATCH, shuffle=False, verbose=0)


def one_step(model):
    """A step of a loop of one's own."""

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return step


@pytest.mark.nightly
def test_several_steps_in_one_function():
    """Each sees what the one before has made; an evaluation the anchor."""
    strategy = tfdist.ParameterServerStrategy(local_steps=50)
    model = build(strategy)
    step = one_step(model)

    @tf.function
    def run(number):
        rows = [slice((number + k) * BATCH, None) for k in range(2)]
        batches = [(X[r][:BATCH], Y[r][:BATCH]) for r in rows]
        first = strategy.run(step, batches[0])
        seen = strategy.run(model, (tf.eye(3),))
        return first, seen, strategy.run(step, batches[1])

    for number in (0, 2, 4):
        _, seen, _ = run(number)
        np.testing.assert_array_equal(seen[:, 0], [0.5, 0.5, 0.5])
    strategy.barrier()
    np.testing.assert_allclose(weights_of(model), plain(range(6)), rtol=1e-5)


@pytest.mark.nightly
def test_a_function_within_a_function():
    strategy = tfdist.ParameterServerStrategy(local_steps=4)
    model = build(strategy)
    step = tf.function(one_step(model))
    run = tf.function(lambda x, y: strategy.run(step, (x, y)))
    for number in range(6):
        rows = slice(number * BATCH, (number + 1) * BATCH)
        run(tf.constant(X[rows]), tf.constant(Y[rows]))
    strategy.barrier()
    np.testing.assert_allclose(weights_of(model), plain(range(6)), rtol=1e-5)
    assert strategy.updates_applied() == [2]


@pytest.mark.nightly
def test_steps_that_name_the_same_variables_in_another_order():
    """As of an encoder and a decoder, the one or the other first."""
    strategy = tfdist.ParameterServerStrategy(local_steps=2)
    with strategy.scope():
        optimizer = keras.optimizers.SGD(1.0)
        one = keras.Variable([0.0])
        two = keras.Variable([0.0, 0.0])
        optimizer.build([one, two])

    def step(*variables):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(one) + 2.0 * tf.reduce_sum(two)
        gradients = tape.gradient(loss, [v.value for v in variables])
        optimizer.apply(gradients, variables)

    for order in ([one, two], [two, one]):
        run = functools.partial(step, *order)
        tf.function(lambda run=run: strategy.run(run))()
    assert strategy.updates_applied() == [1]
    np.testing.assert_array_equal(one.numpy(), [-2.0])
    np.testing.assert_array_equal(two.numpy(), [-4.0, -4.0])


class Counting(keras.Model):
    """Counts its steps in a variable, after the optimizer's step."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.seen = self.add_weight(
            shape=(2,), initializer="zeros", trainable=False, name="seen"
        )

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        logs = super().train_step(data)
        self.seen.assign(self.seen + 1.0)
        return logs


@pytest.mark.nightly
def test_state_that_is_assigned_after_the_optimizers_step():
    strategy = tfdist.ParameterServerStrategy(local_steps=4)
    with strategy.scope():
        model = Counting()
        model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=BATCH, verbose=0)
    strategy.barrier()
    np.testing.assert_array_equal(model.seen.numpy(), [6.0, 6.0])


@pytest.mark.nightly
def test_state_that_no_optimizers_step_assigns_is_refused():
    strategy = tfdist.ParameterServerStrategy(local_steps=4)
    with strategy.scope():
        norm = keras.layers.BatchNormalization()
        norm.build((None, 3))

    @tf.function
    def run():
        return strategy.run(lambda x: norm(x, training=True), (X[:BATCH],))

    with pytest.raises(ValueError, match="step that no optimizer takes"):
        run()


WEIGHTS = averaging.ParameterAveraging(
    4, keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
)
GRADIENTS = averaging.AccruedGradients(4, 4)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("local_steps", "in_fit"),
    [(GRADIENTS, True), (WEIGHTS, False), (GRADIENTS, False), (WEIGHTS, True)],
)
def test_weights_that_are_set_at_the_end_stay(local_steps, in_fit):
    """As `EarlyStopping(restore_best_weights=True)` does."""
    strategy = tfdist.ParameterServerStrategy(local_steps=local_steps)
    model = build(strategy)
    best = [np.full((3, 1), 7.0, np.float32)]

    def restore(logs=None):
        del logs
        if in_fit:
            model.set_weights(best)

    callback = keras.callbacks.LambdaCallback(on_train_end=restore)
    model.fit(X, Y, batch_size=BATCH, verbose=0, callbacks=[callback])
    if not in_fit:
        model.set_weights(best)
    model.evaluate(X, Y, verbose=0)
    strategy.barrier()
    np.testing.assert_array_equal(weights_of(model), [7.0, 7.0, 7.0])


@pytest.mark.nightly
def test_steps_count_after_weights_were_set_one_after_another():
    """As callbacks do that put back layers, each at a time of its own."""
    strategy = tfdist.ParameterServerStrategy(local_steps=100)
    with strategy.scope():
        layer = keras.layers.Dense(1)
        model = keras.Sequential([keras.Input((3,)), layer])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    for variable in (layer.bias, layer.kernel):
        model.train_on_batch(X[:BATCH], Y[:BATCH])
        variable.assign(keras.ops.zeros_like(variable))
    strategy.barrier()
    assert strategy.updates_applied() == [1]
    # Both at once are all there is.
    model.train_on_batch(X[:BATCH], Y[:BATCH])
    model.set_weights(model.get_weights())
    strategy.barrier()
    assert strategy.updates_applied() == [1]


@pytest.mark.parametrize("kind", nightly.also(["ragged"], ["sparse"]))
def test_examples_are_rows_of_whatever_they_are_in(kind):
    strategy = tfdist.ParameterServerStrategy(local_steps=4)
    model = build(strategy)
    step = one_step(model)
    dense = X[:2]
    inputs = tf.RaggedTensor.from_tensor(dense, row_splits_dtype=tf.int64)
    if kind == "sparse":
        inputs = tf.sparse.from_dense(dense)

    def ragged_step(x):
        values = x.to_tensor() if kind == "ragged" else tf.sparse.to_dense(x)
        return step(tf.ensure_shape(values, [None, 3]), Y[:2])

    tf.function(lambda x: strategy.run(ragged_step, (x,)))(inputs)
    (inner,) = strategy._runtime.local.inners
    assert int(inner.examples.numpy()) == 2


@pytest.mark.nightly
def test_who_asks_for_others_steps_goes_on_counting_its_own():
    strategy = tfdist.ParameterServerStrategy(local_steps=4)
    model = build(strategy)
    fit(model, 0, 6)
    strategy.barrier()
    model.optimizer.iterations.value.assign_replica(tf.constant(2, tf.int64))
    assert strategy._runtime.steps_made() == 6
    assert int(model.optimizer.iterations.numpy()) == 2
