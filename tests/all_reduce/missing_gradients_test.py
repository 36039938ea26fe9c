"""Gradients that are None: Keras's error and its warning."""

import keras
import pytest
import tensorflow as tf

from tests import nightly
import tfdist


@pytest.fixture(
    params=[tfdist.AllReduceStrategy, tfdist.PeerToPeerStrategy],
    ids=["all_reduce", "peers"],
)
def step(request):
    """A function of the gradients of two variables, which takes a step."""
    strategy = request.param()
    with strategy.scope():
        variables = [keras.Variable([1.0], name=name) for name in "ab"]
        optimizer = keras.optimizers.SGD(1.0)

    def take(gradients, variables=variables):
        strategy.run(optimizer.apply, (gradients, variables))
        return [float(variable.value[0]) for variable in variables or ()]

    return take


def test_without_any_gradient_a_step_is_an_error(step):
    with pytest.raises(ValueError, match="No gradients provided for any"):
        step([None, None])


def test_gradients_alone_need_an_optimizer_that_is_built(step):
    with pytest.raises(ValueError, match="must already be built"):
        step([tf.ones([1])], None)


def test_a_missing_gradient_is_told(step):
    with pytest.warns(UserWarning, match=r"not exist for variables \['a'\]"):
        assert step([None, tf.ones([1])]) == [1.0, 0.0]


@pytest.mark.parametrize("scaled", nightly.also([True], [False]))
def test_several_optimizers_have_gradients_missing_and_the_chief_s_rates(
    scaled,
):
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        *variables, other = [
            keras.Variable([1.0], name=name) for name in "abcd"
        ]
        pick = keras.optimizers.OptimizerMap(
            keras.optimizers.SGD(1.0), {"b": keras.optimizers.SGD(2.0)}
        )
        optimizer = several = keras.optimizers.MultiOptimizer(pick)
        if scaled:
            optimizer = keras.optimizers.LossScaleOptimizer(several, 1.0)

    def take(*gradients):
        strategy.run(optimizer.apply, (list(gradients), variables))
        return [float(variable.value[0]) for variable in variables]

    one = tf.ones([1])
    with pytest.warns(UserWarning, match=r"not exist for variables \['c'\]"):
        assert take(one, one, None) == [0.0, -1.0, 1.0]
    # Of a worker that is not the chief, rates add nothing to the sum.
    strategy._engine.is_chief = False
    assert take(one, one, one) == [0.0, -1.0, 1.0]
    assert [float(one.learning_rate) for one in several.optimizers] == [0, 0]
    # Keras's own refusal.
    with pytest.raises(ValueError, match="4 gradients and 3 variables"):
        strategy.run(optimizer.apply, ([one] * 4, [*variables, other]))
