"""State that a step assigns is as if there were no batches with NaN."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
import tfdist

STRATEGIES = ["PeerToPeerStrategy", "GossipStrategy"]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 4)).astype("float32")
BAD = X.copy()
BAD[9, 2] = np.nan  # In the second of three batches.


def fitted(name, x, nonfinite="drop", wrap=lambda one: one, **settings):
    """The weights and counts after an epoch, one batch after the other."""
    strategy = getattr(tfdist, name)(seed=1, nonfinite=nonfinite)
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input([4]),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        optimizer = wrap(keras.optimizers.SGD(0.125))
        model.compile(optimizer, "mse", **settings)
    y = np.ones([len(x), 1], "float32")
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return model.get_weights(), strategy


WAYS = {
    "graph": {},
    "eager": {"run_eagerly": True},
    "several": {"steps_per_execution": 3},
    "jit": {"jit_compile": True},
    "scaled": {
        "wrap": lambda one: keras.optimizers.LossScaleOptimizer(
            one, initial_scale=8.0
        )
    },
}


@pytest.mark.parametrize(
    "way", nightly.also(["graph"], sorted(set(WAYS) - {"graph"}))
)
@pytest.mark.parametrize("name", nightly.also(STRATEGIES[:1], STRATEGIES[1:]))
def test_moving_statistics_are_those_without_the_bad_batch(name, way):
    found, strategy = fitted(name, BAD, **WAYS[way])
    good = np.concatenate([X[:8], X[16:]])
    # The loss scale is halved, which leaves the gradients as they are.
    expected, _ = fitted(name, good, **WAYS[way])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    (counts,) = strategy.gradient_counts().values()
    assert counts["nonfinite"] == (0 if way == "scaled" else 1)


class SumsInFunction(keras.layers.Layer):
    def build(self, shape):
        del shape
        self.total = self.add_weight(initializer="zeros", trainable=False)

    @tf.function
    def add(self, x):
        self.total.assign_add(x)

    def call(self, x):
        self.add(tf.reduce_sum(x))
        return x


@pytest.mark.parametrize("evaluates", [True, False])
def test_so_is_what_a_function_assigns_that_another_step_has_traced(evaluates):
    layer = SumsInFunction()
    with tfdist.PeerToPeerStrategy().scope():
        model = keras.Sequential(
            [keras.Input([1]), layer, keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    x = np.array([[1.0], [np.nan], [2.0]], np.float32)
    if evaluates:
        model.evaluate(x[:1], x[:1], verbose=0)
    for _ in range(2):
        before = float(layer.total)
        model.fit(x, x, batch_size=1, shuffle=False, verbose=0)
        assert float(layer.total) == before + 3.0


@pytest.mark.parametrize("way", ["graph", "scaled"])
def test_it_is_an_error_where_that_is_asked_for(way):
    with pytest.raises(tf.errors.InvalidArgumentError, match="moving_mean"):
        fitted("PeerToPeerStrategy", BAD, nonfinite="fail", **WAYS[way])


def test_nothing_is_checked_where_that_is_asked_for():
    weights, _ = fitted("PeerToPeerStrategy", BAD, nonfinite="ignore")
    assert not any(np.isfinite(one).all() for one in weights[2:4])


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_state_of_a_loop_is_checked_before_and_after_the_optimizer(
    eagerly, after
):
    strategy = tfdist.PeerToPeerStrategy()
    gradients = [1.0, np.nan, 2.0]
    with strategy.scope():
        weight = keras.Variable([0.0])
        layer = keras.layers.Layer()
        total, steps = (
            layer.add_weight([1], "zeros", dtype, trainable=False)
            for dtype in ("float32", "int32")
        )
        optimizer = keras.optimizers.SGD(1.0)

    def count(x):
        total.assign(total + x)
        steps.assign(steps + 1)

    def step(x):
        if not after:
            count(x)
        # With state after it, the optimizer's gradient is finite.
        gradient = tf.ones_like(x) if after else x
        optimizer.apply([gradient], [weight])
        if after:
            count(x)

    def run(x):
        strategy.run(step, (x,))

    run = run if eagerly else tf.function(run)
    for gradient in gradients:
        run(tf.constant([gradient], tf.float32))
    assert total.value.numpy() == 3.0
    assert steps.value.numpy() == 2
    assert weight.value.numpy() == -3.0


class Sum(keras.losses.Loss):
    """The sum of outputs: its gradient is the data."""

    def call(self, y_true, y_pred):
        """Returns it, for each example."""
        return keras.ops.sum(y_pred, -1)


@pytest.mark.parametrize("name", ["AllReduceStrategy", *STRATEGIES])
def test_an_update_of_several_batches_takes_the_next_for_a_bad_one(name):
    strategy = getattr(tfdist, name)()
    with strategy.scope():
        layer = keras.layers.Dense(
            1, use_bias=False, kernel_initializer="zeros"
        )
        model = keras.Sequential([keras.Input([1]), layer])
        optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
        model.compile(optimizer, Sum())
    weights = []
    for x in (1.0, np.nan, 3.0, 5.0):
        batch = np.array([[x]], "float32")
        model.train_on_batch(batch, np.ones_like(batch))
        weights.append(model.get_weights()[0].item())
    assert weights == [0.0, 0.0, -2.0, -2.0]
