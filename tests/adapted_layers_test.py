import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist import adapted_layers


def test_layers_normalize_by_the_chief_s_values_from_the_first_step_on():
    """The chief alone has adapted them; they are within another layer."""
    layer = keras.layers.Normalization()
    inner = keras.Sequential([keras.Input([1]), layer])
    model = keras.Sequential(
        [keras.Input([4, 1]), keras.layers.TimeDistributed(inner)]
    )
    x = np.array([1.0, 3.0, 5.0, 7.0], np.float32)[None, :, None]
    commits = []

    def commit():
        commits.append(0)
        layer.adapt_mean.assign([3.0])
        layer.adapt_variance.assign([4.0])

    adapted = adapted_layers.AdaptedLayers(model, commit)
    for _ in range(2):
        result = adapted.call(lambda function: function(x), model)
        np.testing.assert_allclose(result, (x - 3.0) / 2.0)
    assert len(commits) == 1


def test_nothing_is_committed_early_for_other_models():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    adapted = adapted_layers.AdaptedLayers(model, commit=None)
    assert adapted.call(lambda function: function(), lambda: "done") == "done"


@pytest.mark.nightly
def test_a_layer_that_the_first_step_builds_may_be_used_by_others():
    """Such as a step for a smaller batch, and the validation."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = [keras.layers.Normalization(), keras.layers.Dense(1)]

        def call(self, x):
            return self.parts[1](self.parts[0](x))

        def train_step(self, data):
            return super().train_step(data)

    with tfdist.AsyncStrategy().scope():
        model = Own()
        model.compile("sgd", "mse")
    data = np.ones([3, 1]), np.ones([3, 1])
    model.fit(*data, batch_size=2, validation_data=data, verbose=0)


def test_a_layer_that_the_first_step_builds_has_constants_after_it():
    layer = keras.layers.Normalization()
    model = keras.Sequential([layer])
    adapted_layers.see(model)
    x = np.array([[1.0], [7.0]], np.float32)

    def step():
        result = layer(x)
        # As the first step takes over the chief's values.
        with tf.init_scope():
            layer.adapt_mean.assign([3.0])
            layer.adapt_variance.assign([4.0])
        return result

    adapted = adapted_layers.AdaptedLayers(model, commit=None)
    result = adapted.call(lambda function: function(), tf.function(step))
    np.testing.assert_array_equal(result, (x - 3.0) / 2.0)
    np.testing.assert_array_equal(layer(x), (x - 3.0) / 2.0)
    np.testing.assert_array_equal(layer.variance, [[4.0]])
