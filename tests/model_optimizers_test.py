"""Optimizers that consist of others, Keras's and the user's own."""

import keras

from tests.all_reduce import programs
from tfdist import model_optimizers


def _rates(optimizers):
    return [float(one) for one in model_optimizers.rates_of(optimizers)]


def test_rates_are_those_of_all_that_an_optimizer_consists_of():
    sgd = keras.optimizers.SGD
    scheduled = sgd(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))
    fast = sgd(0.25)
    own = programs.Wrapper(fast)
    # Keras's wrappers never use theirs.
    assert _rates(keras.optimizers.LossScaleOptimizer(sgd(0.5))) == [0.5]
    # One of the user's own may; it lists both.
    assert _rates(own) == [0.0, 0.25]
    own.slow = {"parts": [sgd(0.75)]}
    # Each once, also where it is in two.
    assert _rates([own, scheduled, fast]) == [0.0, 0.25, 0.75]
    assert _rates(scheduled) == _rates(None) == []


def test_an_optimizer_in_one_of_the_users_own_is_one_of_its_model():
    model = keras.Sequential()
    fast = keras.optimizers.SGD(0.25)
    model.own = programs.Wrapper(fast)
    assert model_optimizers.optimizers_of(model) == [model.own, fast]
