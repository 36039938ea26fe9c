"""A data set without `batch` is said to be one."""

import keras
import pytest
import tensorflow as tf

import tfdist

X, Y = tf.ones([6, 4, 4]), tf.ones([6, 1])


def model_of(*layers):
    with tfdist.AsyncStrategy().scope():
        model = keras.Sequential(
            [*layers, keras.layers.Flatten(), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    return model


def test_examples_for_a_built_model_are_refused():
    model = model_of(keras.Input([4, 4]))
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    for call in (model.fit, model.evaluate, model.predict):
        with pytest.raises(ValueError, match=r"dataset.batch\(32\).*\(4, 4\)"):
            call(data, verbose=0)
    model.fit(data.batch(2), verbose=0)


def test_scalars_are_refused():
    data = tf.data.Dataset.from_tensor_slices((Y[:, 0], Y))
    with pytest.raises(ValueError, match="must give batches"):
        model_of().fit(data, verbose=0)


def test_batches_of_scalars_are_none():
    """Keras gives them the last dimension that the model has."""
    with tfdist.AsyncStrategy().scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((Y[:, 0], Y))
    model.fit(data.batch(2), verbose=0)


def test_inputs_of_another_shape_are_left_to_keras():
    """Of a vector nobody knows whether it is an example."""
    model_of().fit(tf.data.Dataset.from_tensors((X, Y)), verbose=0)
