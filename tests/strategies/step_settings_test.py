"""Settings of optimizers that are known, or change, beside their steps."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
import tfdist
from tfdist import model_optimizers


@pytest.mark.parametrize(
    ("make", "is_eager"),
    nightly.also(
        [
            (tfdist.AllReduceStrategy, True),
            (tfdist.PeerToPeerStrategy, True),
            (tfdist.AsyncStrategy, True),
        ],
        [(lambda: tfdist.AllReduceStrategy(nonfinite="ignore"), False)],
    ),
    ids=["all_reduce", "all_reduce eagerly", "peers", "servers"],
)
def test_steps_have_the_settings_with_which_they_are_built(make, is_eager):
    strategy = make()
    with strategy.scope():
        weight = keras.Variable([1.0])
        optimizer = keras.optimizers.SGD(1.0, weight_decay=0.25)
        optimizer.build([weight])

    def after_step():
        def run():
            strategy.run(optimizer.apply, ([tf.zeros([1])], [weight]))

        (run if is_eager else tf.function(run))()
        return float(weight[0])

    assert after_step() == 0.75
    optimizer.weight_decay = 0.5
    assert after_step() == 0.75 * 0.5
    if isinstance(strategy, tfdist.AllReduceStrategy):
        optimizer.learning_rate = (
            keras.optimizers.schedules.PiecewiseConstantDecay([99], [0.5, 0.5])
        )
        assert after_step() == 0.75 * 0.5 * 0.75


class Unsaved(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule without a config, as in Keras's own example."""

    def __call__(self, step):
        return 1.0 / (keras.ops.cast(step, "float32") + 1.0)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("strategy", "eagerly", "rate"),
    [
        (tfdist.AsyncStrategy, True, Unsaved),
        (tfdist.AllReduceStrategy, False, lambda: functools.partial(float, 1)),
    ],
    ids=["servers", "all_reduce"],
)
def test_rates_that_keras_cannot_save_train(strategy, eagerly, rate):
    with strategy().scope():
        model = keras.Sequential(
            [keras.Input([1]), keras.layers.Dense(1, use_bias=False)]
        )
        model.compile(
            keras.optimizers.SGD(rate()),
            lambda y, out: y * out,
            run_eagerly=eagerly,
        )
    model.set_weights([np.full([1, 1], 3.0)])
    model.fit(np.ones([1, 1]), np.ones([1, 1]), verbose=0)
    assert model.get_weights() == [[[2.0]]]


@pytest.mark.parametrize(
    "rate",
    [Unsaved(), functools.partial(float, 1), eval("lambda: 1.0"), lambda: 1.0],
    ids=["schedule", "callable", "interactive", "lambda"],
)
def test_settings_are_known_beside_a_rate_that_keras_cannot_save(rate):
    inner = keras.optimizers.SGD(rate)
    for optimizer in (inner, keras.optimizers.LossScaleOptimizer(inner)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = []
            for inner.weight_decay in (0.25, 0.5):
                found.append(
                    (
                        model_optimizers.settings_of(optimizer),
                        model_optimizers.described([optimizer]),
                    )
                )
            for first, second in zip(*found, strict=True):
                assert first != second
            inner.build([keras.Variable([1.0])])
            assert model_optimizers.settings_of(optimizer) == found[1][0]
