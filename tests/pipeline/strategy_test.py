"""`PipelineStrategy`, and `pipeline` without it and under other strategies."""

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

from tests.pipeline import models
import tfdist
from tfdist.pipeline import pipeline
from tfdist.pipeline import pipelined

LOSS = models.KINDS["mlp"].loss


def data(examples=22):
    x, y, _ = models.data("mlp", examples)
    return x.astype("float32"), y


def fitted(model, **arguments):
    history = model.fit(
        *data(), batch_size=8, epochs=2, shuffle=False, verbose=0, **arguments
    )
    return history.history


def compiled(model):
    model.compile("adam", LOSS, metrics=["accuracy"])
    return model


def strategy_of(**options):
    return tfdist.PipelineStrategy(
        **{"stages": ["b", "c"], "micro_batches": 2, **options}
    )


def assert_same(model, expected):
    for one, other in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6, err_msg=one.path)


@pytest.fixture(scope="module")
def plain():
    """A model that was trained without a pipeline, and its history."""
    model = compiled(models.make("mlp"))
    return model, fitted(model, validation_data=data(5))


@pytest.mark.nightly
def test_fit_under_the_strategy_is_that_without(plain, tmp_path):
    strategy = strategy_of()
    epochs = []
    with strategy.scope():
        made = models.make("mlp")
        model = strategy.pipeline(made)
        compiled(model)
    assert model is made and type(model).__name__ == "Sequential"
    history = fitted(
        model,
        validation_data=data(5),
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: epochs.append(epoch)
            ),
            keras.callbacks.ModelCheckpoint(tmp_path / "best.keras"),
        ],
    )
    assert epochs == [0, 1]
    expected, expected_history = plain
    assert_same(model, expected)
    for name, values in expected_history.items():
        np.testing.assert_allclose(history[name], values, atol=1e-5)
    for variable in [*model.variables, *model.optimizer.variables]:
        for index, layer in enumerate("abc"):
            if f"{layer}/" in variable.path or f"/{layer}_" in variable.path:
                assert variable.value.device.endswith(f"CPU:{index}")
    assert strategy.extended.worker_devices == tuple(
        f"/job:localhost/replica:0/task:0/device:CPU:{k}" for k in range(3)
    )
    assert model.distribute_strategy.num_replicas_in_sync == 1
    # The file is that of any model of this kind.
    loaded = keras.models.load_model(tmp_path / "best.keras")
    assert not hasattr(loaded, "stages")
    assert [layer.name for layer in loaded.layers] == ["a", "b", "c"]
    np.testing.assert_allclose(
        loaded.predict(data()[0], verbose=0),
        model.predict(data()[0], verbose=0),
        atol=1e-6,
    )


@pytest.mark.nightly
def test_models_that_are_no_pipeline_are_not_trained():
    strategy = strategy_of()
    with strategy.scope():
        model = compiled(models.make("mlp"))
    with pytest.raises(ValueError, match="strategy.pipeline"):
        fitted(model)
    assert model.evaluate(*data(), verbose=0)[0] > 0
    outside = models.make("mlp")
    with pytest.raises(ValueError, match="outside this strategy's scope"):
        strategy.pipeline(outside)
    # Where Keras takes the model for one of the scope.
    with strategy.scope():
        with pytest.raises(ValueError, match="outside this strategy's scope"):
            strategy.pipeline(outside)


@pytest.mark.nightly
def test_compiled_and_trained_models_become_pipelines(plain, tmp_path):
    half = compiled(models.make("mlp"))
    half.fit(*data(), batch_size=8, epochs=1, shuffle=False, verbose=0)
    half.save(tmp_path / "half.keras")
    model = keras.models.load_model(tmp_path / "half.keras")
    pipeline(model, stages=3, schedule="1f1b", micro_batches=3)
    for slot in model.optimizer.variables:
        if "/c_" in slot.path:
            assert slot.value.device.endswith("CPU:2")
    model.fit(*data(), batch_size=8, epochs=1, shuffle=False, verbose=0)
    assert_same(model, plain[0])


def test_strategies_with_replicas_are_refused():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope(), pytest.raises(ValueError, match="strategy"):
        model = pipeline(models.make("mlp"), ["b", "c"])
        compiled(model)
        fitted(model)


def test_layers_of_layers_go_with_them():
    """Also those that have the name of a layer of another stage."""
    inner = keras.Sequential([layers.Dense(3, name="a")], name="inner")
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(4, name="a"), inner]
    )
    pipeline(model, ["inner"])
    outer, inner = model.layers
    assert outer.kernel.value.device.endswith("CPU:0")
    assert inner.layers[0].kernel.value.device.endswith("CPU:1")


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return {}


class OwnCall(keras.Sequential):
    def call(self, inputs, training=None):
        return 2 * super().call(inputs, training)


class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: OwnStep([keras.Input((2,)), layers.Dense(2)]), "train_step"),
        (lambda: OwnCall([keras.Input((2,)), layers.Dense(2)]), r"\.call"),
        (lambda: keras.Sequential([layers.Dense(2)]), "not built"),
    ],
)
def test_models_that_cannot_be_pipelines_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        pipeline(make(), stages=1)


def test_weights_that_are_overwritten_by_gradients_are_refused():
    """As the scales of float8 are."""
    model = compiled(models.make("mlp"))
    model.layers[0].bias.overwrite_with_gradient = True
    with pytest.raises(ValueError, match="a/bias' takes .*float8"):
        pipeline(model, stages=2)


def test_stateful_layers_are_refused():
    lstm = layers.LSTM(2, stateful=True)
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(4, 3, 2)),
            layers.Bidirectional(lstm, name="a"),
            layers.Dense(1, name="b"),
        ]
    )
    pipeline(model, ["b"], micro_batches=2)
    with pytest.raises(ValueError, match="'a' is stateful"):
        model.compile("sgd", "mse")


def test_layers_that_keras_computes_again_are_refused():
    with keras.RematScope("full"):
        again = layers.Dense(2, name="a")
    model = keras.Sequential(
        [keras.Input((2,)), again, layers.Dense(1, name="b")]
    )
    pipeline(model, ["b"])
    with pytest.raises(ValueError, match="'a' was made in a keras.RematScope"):
        model.compile("sgd", "mse")


def test_subclassed_models_are_refused():
    model = Subclassed()
    model.build((None, 2))
    with pytest.raises(ValueError, match="Sequential or functional"):
        pipeline(model, stages=1)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"schedule": "zigzag"}, "`schedule` must be one of gpipe, 1f1b"),
        ({"micro_batches": 0}, "`micro_batches` must be .*0"),
        ({"recompute": True, "schedule": "pipedream"}, "recompute=True"),
        ({"vertical_sync": True}, "vertical_sync=True"),
        ({"stages": [["a"], []]}, "`stages` must be"),
        ({"devices": ["CPU:0"]}, "one for each of the 3 stages"),
        ({"devices": ["CPU:0", "CPU:1", "CPU:77"]}, "CPU:77"),
    ],
)
def test_strategy_refuses_options(options, message):
    with pytest.raises(ValueError, match=message):
        strategy_of(**options)


def test_compile_refuses_xla_and_losses_that_cannot_be():
    model = pipeline(models.make("mlp"), 2, schedule="1f1b")
    with pytest.raises(ValueError, match="jit_compile"):
        model.compile("sgd", LOSS, jit_compile=True)
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    with pytest.raises(ValueError, match="reduction"):
        model.compile("sgd", loss)
    with pytest.raises(ValueError, match="a pipeline already"):
        pipeline(model, 2)


def test_what_is_in_flight_comes_back_before_anyone_looks(
    monkeypatch, tmp_path
):
    """An asynchronous executor is drained; it is not asked while it drains."""
    calls = []

    class Executor:
        def train_step(self, data):
            return {"loss": tf.constant(0.0)}

        def drain(self):
            calls.append("drain")
            model.save_weights(tmp_path / "b.weights.h5")

    monkeypatch.setattr(
        pipelined.PipelineOptions, "executor", lambda *arguments: Executor()
    )
    model = pipeline(models.make("mlp"), 2)
    model.compile("adam", LOSS)
    fitted(model)
    # Before and after training, and when both epochs begin and end.
    assert calls == ["drain"] * 6
    for look in (
        model.get_metrics_result,
        model.reset_metrics,
        model.get_state_tree,
        lambda: model.set_state_tree({}),
        lambda: keras.saving.save_model(model, tmp_path / "a.keras"),
        lambda: model.save(tmp_path / "a.keras"),
        lambda: model.save_weights(tmp_path / "a.weights.h5"),
        lambda: keras.saving.load_weights(model, tmp_path / "a.weights.h5"),
        lambda: model.evaluate(*data(), verbose=0),
        lambda: model.predict(data()[0], verbose=0),
    ):
        calls.clear()
        look()
        assert calls


@pytest.mark.nightly
def test_a_compiled_model_becomes_a_pipeline_outside_the_scope():
    strategy = strategy_of(schedule="pipedream", stages=2)
    with strategy.scope():
        model = compiled(models.make("mlp"))
    strategy.pipeline(model)
    x, y = data(4)
    model.train_on_batch(x, y)
    assert model.optimizer.built


@pytest.mark.nightly
def test_layers_of_a_pipeline_are_trained_in_another_one():
    """As where a head is trained first, and then another one on its body."""
    strategy = strategy_of(stages=2)
    with strategy.scope():
        first = strategy.pipeline(models.make("mlp"))
        body = first.layers[:-1]
        assert any(
            weight.value.device.endswith("CPU:1")
            for layer in body
            for weight in layer.weights
        )
        model = keras.Sequential(
            [keras.Input((4,)), *body, layers.Dense(3, name="new")]
        )
        compiled(strategy.pipeline(model))
    model.train_on_batch(*data(8))


def test_a_model_whose_pipeline_is_refused_is_left_as_it_was():
    model = models.make("mlp")
    model.compile("nadam", LOSS, run_eagerly=True)
    with pytest.raises(ValueError, match="must not be Nadam"):
        pipeline(model, 2, schedule="pipedream")
    x, y = data(4)
    model.train_on_batch(x, y)
    assert not isinstance(model, pipelined.Pipelined)
    model.compile("adam", LOSS, run_eagerly=True)
    pipeline(model, 2, schedule="pipedream")
    with pytest.raises(ValueError, match="must not be Nadam"):
        model.compile("nadam", LOSS, run_eagerly=True)
    with pytest.raises(ValueError, match="last `compile` has failed"):
        model.train_on_batch(x, y)


@pytest.mark.nightly
def test_validation_data_of_unknown_size_is_read_anew_in_each_epoch():
    strategy = strategy_of()
    with strategy.scope():
        model = compiled(strategy.pipeline(models.make("mlp")))
    # Two batches, which the data does not say.
    validation = tf.data.Dataset.from_tensor_slices(data(8))
    validation = validation.filter(lambda x, y: True).batch(4)
    model.fit(
        *data(8),
        epochs=3,
        validation_data=validation,
        validation_steps=2,
        verbose=0,
    )
    assert len(model.history.history["val_loss"]) == 3


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_optimizer_from_outside_the_scope_is_refused(optimizer):
    strategy = strategy_of()
    with strategy.scope():
        model = strategy.pipeline(models.make("mlp"))
    with pytest.raises(ValueError, match="inside the scope .*Received: opt"):
        model.compile(optimizer, LOSS)


class Noise(layers.Layer):
    """Multiplies by random numbers that TensorFlow draws.

    Args:
        draw: what draws them, a callable of their shape.
    """

    def __init__(self, draw=tf.random.normal):
        super().__init__()
        self._draw = draw

    def call(self, inputs):
        return inputs * self._draw(tf.shape(inputs))


def draw_rows(shape):
    """Draws random numbers row by row, in a loop of TensorFlow's."""
    rows = tf.zeros(shape[:1])
    return tf.map_fn(lambda row: row + tf.random.normal(shape[1:]), rows)


@pytest.mark.parametrize(
    ("options", "draw", "refused"),
    [
        ({"schedule": "1f1b", "recompute": True}, tf.random.normal, True),
        ({"schedule": "1f1b", "recompute": True}, draw_rows, True),
        ({"schedule": "pipedream"}, tf.function(draw_rows), True),
        ({"schedule": "1f1b"}, tf.random.normal, False),
    ],
)
def test_random_numbers_that_would_be_drawn_again_are_refused(
    options, draw, refused
):
    model = keras.Sequential(
        [
            keras.Input((1,)),
            layers.Dense(
                1, use_bias=False, kernel_initializer="ones", name="a"
            ),
            Noise(draw),
            layers.Identity(name="b"),
        ]
    )
    pipeline(model, ["b"], micro_batches=4, **options)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.ones((2048, 1), "float32")
    if refused:
        with pytest.raises(ValueError, match="TensorFlow's RandomStandard"):
            model.fit(x, 0 * x, batch_size=2048, verbose=0)
        return
    model.fit(x, 0 * x, batch_size=2048, verbose=0)
    # 1 - 0.1 E[2 n^2], whose standard error is 0.006.
    assert float(model.layers[0].kernel[0, 0]) == pytest.approx(0.8, abs=0.04)
