"""Training with GPipe and 1F1B is training with the whole batch."""

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.pipeline import models
from tests.pipeline.steps import DEVICES
from tests.pipeline.steps import assert_close
from tests.pipeline.steps import compiled
from tests.pipeline.steps import executor
from tests.pipeline.steps import small
from tests.pipeline.steps import step
from tests.pipeline.steps import tensors
from tfdist.pipeline import pipeline
from tfdist.pipeline import schedules

SCHEDULES = schedules.SYNCHRONOUS


# The gradient.


@pytest.mark.parametrize("schedule", nightly.also(["1f1b"], ["gpipe"]))
@pytest.mark.parametrize("kind", models.KINDS)
def test_gradient_is_that_of_the_whole_batch(kind, schedule, float64):
    model = compiled(models.make(kind), models.KINDS[kind].loss)
    *data, weights = models.data(kind, 7)
    counts = [1, 3, 8] if kind == "mlp" else [2, 8]
    for sample_weight, cases in [
        (weights, [*((count, False) for count in counts), (3, True)]),
        (None, [(3, False)]),
    ]:
        batch = (*data, sample_weight)
        expected, expected_logs = step(model, model.train_step, batch)
        assert any(np.abs(g).max() > 1e-3 for g in expected.values())
        for micro_batches, recompute in cases:
            pipeline = executor(
                model,
                models.KINDS[kind].stages,
                schedule,
                micro_batches,
                recompute=recompute,
            )
            found, logs = step(model, pipeline.train_step, batch)
            assert_close(found, expected)
            assert_close(logs, expected_logs)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradient_of_a_sum_of_losses(schedule, float64):
    loss = keras.losses.MeanSquaredError(reduction="sum")
    model = compiled(models.make("convnet"), loss)
    batch = models.data("convnet", 7)
    expected, _ = step(model, model.train_step, batch)
    pipelined = executor(model, ["c", "e"], schedule, 3)
    assert_close(step(model, pipelined.train_step, batch)[0], expected)


def test_gradient_of_losses_by_name_of_outputs_in_a_list(float64):
    x = keras.Input((4,))
    early = layers.Dense(2, name="early")(x)
    model = keras.Model(x, [layers.Dense(3, name="late")(early), early])
    losses = {"early": "mae", "late": keras.losses.MeanSquaredError()}
    compiled(model, losses)
    x, y, _ = models.data("skip", 4)
    batch = x, {"early": y[:, :2], "late": y}
    expected, _ = step(model, model.train_step, batch)
    pipelined = executor(model, 2, "1f1b", 2)
    assert_close(step(model, pipelined.train_step, batch)[0], expected)


def test_gpipe_has_any_loss_of_outputs(float64):
    """Contrast between examples, a scalar, the sum of weights, own terms."""

    class OwnLoss(keras.Sequential):
        @property
        def metrics(self):
            return [self.total]

        def compute_loss(self, inputs, targets, outputs, weights):
            contrast = tf.matmul(outputs, outputs, transpose_b=True)
            self.total.update_state(tf.reduce_mean(outputs))
            return (
                super().compute_loss(inputs, targets, outputs, weights)
                + tf.math.reduce_std(contrast)
                + tf.reduce_sum(self.layers[0].kernel.value ** 3)
            )

    model = OwnLoss(models.make("mlp").layers)
    model.total = keras.metrics.Sum(name="loss")
    model.build((None, 4))
    compiled(
        model,
        keras.losses.SparseCategoricalCrossentropy(
            reduction="mean_with_sample_weight"
        ),
    )
    batch = models.data("mlp", 7)
    expected, expected_logs = step(model, model.train_step, batch)
    found, logs = step(model, executor(model, 3, "gpipe", 4).train_step, batch)
    assert_close(found, expected)
    assert_close(logs, expected_logs)


def test_a_loss_that_calls_layers_finds_and_changes_their_state(float64):
    class Twice(keras.Sequential):
        def compute_loss(self, x, y, y_pred, sample_weight):
            again = self(x, training=True)
            return tf.reduce_mean((again - y) ** 2) + tf.reduce_mean(y_pred)

    model = Twice(
        [
            keras.Input((4,)),
            layers.Dropout(0.5, seed=3),
            layers.BatchNormalization(),
            layers.Dense(3, name="out"),
        ]
    )
    compiled(model, "mse")
    batch = models.data("skip", 7)[:2]
    expected, _ = step(model, model.train_step, batch)
    found, _ = step(model, executor(model, 2, "gpipe", 1).train_step, batch)
    assert any("moving" in name and g.any() for name, g in found.items())
    assert_close(found, expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradient_where_softmax_is_saturated(schedule, float64):
    """Keras computes crossentropies from logits; so must a pipeline."""
    model = compiled(models.make("mlp"), models.KINDS["mlp"].loss)
    model.layers[-1].kernel.assign(100 * model.layers[-1].kernel)
    batch = models.data("mlp", 7)
    assert model.predict(batch[0], verbose=0).min() < 1e-7
    expected, _ = step(model, model.train_step, batch)
    pipelined = executor(model, 3, schedule, 3)
    assert_close(step(model, pipelined.train_step, batch)[0], expected, 1e-9)


class Turn(layers.Layer):
    """Real numbers to complex ones."""

    def call(self, inputs):
        return tf.complex(inputs, 2 * inputs)


class Size(layers.Layer):
    """Complex numbers to real ones."""

    def call(self, inputs):
        return tf.abs(inputs)


def test_gradients_pass_through_complex_tensors(float64):
    model = small(layers.Dense(4), Turn(), Size(name="size"))
    compiled(model, "mse")
    batch = models.data("skip", 4)[:2]
    expected, _ = step(model, model.train_step, batch)
    pipelined = executor(model, ["size"], "gpipe", 2)
    assert_close(step(model, pipelined.train_step, batch)[0], expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_loss_scale_is_undone(schedule, float64):
    model = compiled(
        models.make("mlp"),
        models.KINDS["mlp"].loss,
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0)),
    )
    batch = models.data("mlp", 7)
    expected, _ = step(model, model.train_step, batch)
    pipelined = executor(model, 3, schedule, 3)
    found, _ = step(model, pipelined.train_step, batch)
    assert np.abs(expected["c/kernel"]).max() > 1e-3
    assert_close(found, expected, 1e-9)


# State.


def normalized(examples, micro_batches, **options):
    """Moving statistics after a step from zeros and ones, and the data."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.BatchNormalization(momentum=0.9, name="norm"),
            layers.Dense(3, name="out"),
        ]
    )
    compiled(model, "mse")
    x, y, _ = models.data("skip", examples)
    executor(model, 2, "gpipe", micro_batches, **options).train_step(
        tensors((x, y))
    )
    norm = model.layers[0]
    return x, norm.moving_mean.numpy(), norm.moving_variance.numpy()


@pytest.mark.parametrize("recompute", [False, True])
def test_batch_normalization_moves_once_per_batch(recompute, float64):
    x, mean, variance = normalized(7, 3, recompute=recompute)
    np.testing.assert_allclose(mean, 0.1 * x.mean(0), atol=1e-12)
    inner = sum(len(part) / 7 * part.var(0) for part in (x[:3], x[3:5], x[5:]))
    np.testing.assert_allclose(variance, 0.9 + 0.1 * inner, atol=1e-12)


def test_batch_normalization_of_fewer_examples_than_micro_batches(float64):
    x, mean, variance = normalized(2, 5)
    np.testing.assert_allclose(mean, 0.1 * x.mean(0), atol=1e-12)
    np.testing.assert_allclose(variance, 0.9, atol=1e-12)


class Counter(layers.Layer):
    """Notes how many examples have come, as floating-point state."""

    def build(self, shape):
        self.seen = self.add_weight(
            shape=(), initializer="zeros", trainable=False
        )

    def call(self, inputs):
        size = keras.ops.shape(inputs)[0]
        self.seen.assign_add(keras.ops.cast(size, self.seen.dtype))
        return inputs


@pytest.mark.parametrize("examples", [2, 7])
def test_other_state_goes_through_all_micro_batches(examples):
    counter = Counter()
    model = keras.Sequential(
        [keras.Input((4,)), counter, layers.Dense(3, name="out")]
    )
    compiled(model, "mse")
    data = models.data("skip", examples)
    executor(model, 2, "1f1b", 3).train_step(tensors(data))
    # Empty micro-batches count nothing, whatever they are given.
    assert counter.seen.numpy() == examples


def dropped(schedule, recompute, examples=8):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(50, name="in"),
            layers.Dropout(0.5, seed=3, name="drop"),
            layers.Dense(2, use_bias=False, name="out"),
            layers.Dense(2, name="last"),
        ]
    )
    compiled(model, keras.losses.MeanAbsoluteError())
    x = np.ones((examples, 4))
    pipelined = executor(
        model, ["out", "last"], schedule, 4, recompute=recompute
    )
    outputs = []
    compute_metrics = model.compute_metrics
    model.compute_metrics = lambda x, y, y_pred, sample_weight: (
        outputs.append(y_pred.numpy())
        or compute_metrics(x, y, y_pred, sample_weight)
    )
    gradients, _ = step(
        model, pipelined.train_step, (x, np.full((examples, 2), 9.0))
    )
    (seed,) = (name for name in gradients if "seed" in name)
    gradients["seed"] = gradients.pop(seed)
    return gradients, outputs[0]


@pytest.mark.nightly
def test_recomputation_has_the_same_dropout(float64):
    expected, outputs = dropped("gpipe", False)
    # Each micro-batch has a mask of its own; else these would repeat.
    assert len(np.unique(outputs[:, 0])) == 8
    for schedule in SCHEDULES:
        found, again = dropped(schedule, True)
        np.testing.assert_array_equal(again, outputs)
        assert_close(found, expected)


# Training.


def trained(kind, schedule=None, micro_batches=1, **arguments):
    """After 20 steps with 7 examples, every fourth with 3: all there is."""
    model = models.make(kind)
    recompute = arguments.pop("recompute", False)
    epochs = arguments.pop("epochs", 5)
    if schedule:
        pipeline(
            model,
            models.KINDS[kind].stages,
            DEVICES,
            schedule=schedule,
            micro_batches=micro_batches,
            recompute=recompute,
        )
    if kind == "convnet":
        optimizer = keras.optimizers.AdamW(
            0.01, weight_decay=0.1, global_clipnorm=0.3, use_ema=True
        )
    else:
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(
        optimizer,
        models.KINDS[kind].loss,
        weighted_metrics={"two": {"early": "mae"}}.get(kind, ["mae"]),
        **arguments,
    )
    x, y, weights = models.data(kind, 24)
    history = model.fit(
        x, y, 7, epochs, 0, shuffle=False, sample_weight=weights
    )
    return [variable.numpy() for variable in model.variables], history.history


def assert_same_training(found, expected):
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-9),
        found,
        expected,
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "kind, schedule, micro_batches, recompute",
    [("skip", "1f1b", 5, True), ("convnet", "gpipe", 3, False)],
)
def test_training_is_that_without_a_pipeline(
    kind, schedule, micro_batches, recompute, float64
):
    found = trained(kind, schedule, micro_batches, recompute=recompute)
    assert_same_training(found, trained(kind))


@pytest.mark.nightly
def test_training_with_several_outputs_and_steps_per_execution(float64):
    found = trained("two", "1f1b", 2, steps_per_execution=3)
    assert_same_training(found, trained("two"))
