"""Canaries for `tfdist.private_keras_building`; see `private_keras_test`."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import private_names
from tests.private_keras_test import model_of_two
from tfdist import private_keras_building


def test_every_name_has_a_canary():
    assert not private_names.without_a_canary(private_keras_building, __file__)


class NeverCalled(keras.Model):
    """A model without `call`."""

    def train_step(self, data):
        return {"loss": tf.reduce_mean(data)}


def test_a_model_with_a_step_of_its_own_is_not_called_to_be_built():
    def fit(*changes):
        with tf.distribute.OneDeviceStrategy("/device:CPU:0").scope():
            model = NeverCalled()
            model.compile(run_eagerly=True)
        for change in changes:
            change(model)
        model.fit(np.ones([2, 3]), verbose=0)

    with pytest.raises(RuntimeError, match="Unable to automatically build"):
        fit()
    fit(private_keras_building.build_without_data)


@pytest.mark.parametrize(
    "change",
    [
        None,
        private_keras_building.build_without_data,
        private_keras_building.build_for_new_iterator,
    ],
)
def test_a_validation_builds_with_an_iterator_of_its_own(change):
    """Under a strategy Keras uses that of the one before, which may be over."""
    ones = np.ones([4, 1])
    data = tf.data.Dataset.from_tensor_slices((ones, ones)).batch(2)
    unknown = data.filter(lambda x, y: True)
    with tf.distribute.OneDeviceStrategy("/device:CPU:0").scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    expected = contextlib.nullcontext()
    if change is not None:
        change(model)
    else:
        expected = pytest.raises(StopIteration)
    with expected:
        model.fit(
            data,
            validation_data=unknown,
            validation_steps=2,
            epochs=2,
            verbose=0,
        )


def test_it_is_known_who_wrote_a_train_step():
    model = model_of_two()
    assert not private_keras_building.has_own_train_step(model)
    private_keras_building.build_without_data(model)
    assert not private_keras_building.has_own_train_step(model)
    model.train_step = lambda data: {}
    assert private_keras_building.has_own_train_step(model)
    assert private_keras_building.has_own_train_step(NeverCalled())


def test_it_is_known_what_a_first_step_has_yet_to_build():
    x = keras.Input([3])
    model = keras.Model(x, keras.layers.Dense(2)(x))
    model.head = keras.layers.Dense(1)
    # It has nothing to build.
    model.flips = keras.Sequential([keras.layers.RandomFlip()])
    assert private_keras_building.unbuilt_layers(model) == [model.head]
    assert model.built and private_keras_building.is_built(model)
    model.train_step = lambda data: {}
    assert not private_keras_building.is_built(model)
    model.head.build([None, 1])
    assert private_keras_building.is_built(model)
    model.built = False
    assert not private_keras_building.is_built(model)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("full", True), ("activations", False), (None, False)],
)
def test_layers_that_are_computed_again_are_known(mode, expected):
    with keras.RematScope(mode):
        layer = keras.layers.Dense(1, "relu")
    assert private_keras_building.is_rematerialized(layer) is expected
    assert not private_keras_building.is_rematerialized(keras.layers.Dense(1))
