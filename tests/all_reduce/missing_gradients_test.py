"""Gradients that are None: Keras's error and its warning."""

import keras
import pytest
import tensorflow as tf

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

    def take(gradients):
        strategy.run(optimizer.apply, (gradients, variables))
        return [float(variable.value[0]) for variable in variables]

    return take


def test_without_any_gradient_a_step_is_an_error(step):
    with pytest.raises(ValueError, match="No gradients provided for any"):
        step([None, None])


def test_a_missing_gradient_is_told(step):
    with pytest.warns(UserWarning, match=r"not exist for variables \['a'\]"):
        assert step([None, tf.ones([1])]) == [1.0, 0.0]
