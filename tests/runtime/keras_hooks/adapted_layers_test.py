import keras
import numpy as np

from tfdist.runtime.keras_hooks import adapted_layers


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
