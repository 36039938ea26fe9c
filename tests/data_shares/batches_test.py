"""A data set without `batch` is said to be one."""

import keras
import pytest
import tensorflow as tf

from tests import nightly
import tfdist

X, Y = tf.ones([6, 4, 4]), tf.ones([6, 1])


def model_of(*layers):
    with tfdist.AsyncStrategy().scope():
        model = keras.Sequential(
            [*layers, keras.layers.Flatten(), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    return model


@pytest.mark.nightly
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


class Scaled(keras.Model):
    """Has a step of its own, which scales the loss by a number of the data."""

    def __init__(self):
        super().__init__()
        self.part = keras.layers.Dense(1)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            error = self.part(data["x"]) - data["y"]
            loss = data["scale"] * tf.reduce_mean(error**2)
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"scaled_loss": loss}


def test_a_step_of_the_user_s_may_have_scalars_beside_its_batches():
    with tfdist.AsyncStrategy().scope():
        model = Scaled()
        model.compile("sgd")
    data = tf.data.Dataset.from_tensors({"x": X, "y": X[:, :, :1]})
    data = data.map(lambda batch: batch | {"scale": 0.5})
    history = model.fit(data, verbose=0)
    assert history.history["scaled_loss"][0] > 0


@pytest.mark.parametrize(
    "size, is_known", nightly.also([(1, False), (1, True)], [(2, False)])
)
def test_batches_of_scalars_are_none(size, is_known):
    """Keras gives them the last dimension that the model has."""
    with tfdist.AsyncStrategy().scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((Y[:, 0], Y[:, 0]))
    data = data.batch(size, drop_remainder=is_known)
    model.fit(data, verbose=0)
    assert int(model.optimizer.iterations) == 6 // size


def test_one_number_is_no_batch_for_an_input_of_another_size():
    model = model_of(
        keras.Input([None]),
        keras.layers.Reshape([-1, 1]),
        keras.layers.GlobalAveragePooling1D(),
    )
    data = tf.data.Dataset.from_tensor_slices((Y, Y))
    with pytest.raises(ValueError, match="must give batches"):
        model.fit(data, verbose=0)


def test_inputs_of_another_shape_are_left_to_keras():
    """Of a vector nobody knows whether it is an example."""
    model_of().fit(tf.data.Dataset.from_tensors((X, Y)), verbose=0)
