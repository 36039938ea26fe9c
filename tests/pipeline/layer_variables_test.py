"""Variables that a layer gets late, or that are those of its metrics."""

import keras
from keras import layers
import numpy as np
import pytest

from tests.pipeline import models
from tfdist.pipeline import pipeline


def data(examples):
    x, y, _ = models.data("skip", examples)
    return x.astype("float32"), y.astype("float32")


def adapted(schedule, enable_after_compile=False):
    """A model whose last layer gets a low-rank adapter (LoRA) when cut."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(5, "tanh", name="a"),
            layers.Dense(3, name="b"),
        ]
    )
    if schedule:
        pipeline(model, ["b"], micro_batches=1, schedule=schedule)
    if not enable_after_compile:
        model.get_layer("b").enable_lora(2)
    model.compile(keras.optimizers.SGD(0.25), "mse", run_eagerly=True)
    if enable_after_compile:
        model.get_layer("b").enable_lora(2)
    return model


@pytest.mark.parametrize(
    ("schedule", "enable_after_compile"),
    [("gpipe", False), ("gpipe", True), ("pipedream", False)],
)
def test_weights_that_a_layer_gets_after_the_cut_are_trained(
    schedule, enable_after_compile
):
    trained = []
    for name in (None, schedule):
        model = adapted(name, enable_after_compile)
        # One batch at a time in the pipeline: as without one.
        for _ in range(2):
            model.fit(*data(6), batch_size=6, shuffle=False, verbose=0)
        trained.append(model.get_weights())
    for one, two in zip(*trained, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)
    assert np.any(model.get_layer("b").lora_kernel_b)
    if not enable_after_compile:
        device = model.get_layer("b").lora_kernel_a.value.device
        assert device.endswith("CPU:1")
