"""A model on two devices, then as a pipeline of two stages: python THIS."""

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist import placement

# In place of GPUs; before TensorFlow's first operation.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 3,
)
x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")


def build():
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input([8]),
            keras.layers.Dense(32, "relu", name="encoder_0"),
            keras.layers.Dense(32, "relu", name="encoder_1"),
            keras.layers.Dense(2, "softmax", name="decoder"),
        ]
    )


placed = build()
placement.place(placed, {"encoder*": "CPU:1", "decoder": "CPU:2"})
placed.compile("adam", "sparse_categorical_crossentropy")
placed.fit(x, y, batch_size=32, epochs=4, shuffle=False, verbose=0)
print(placement.report(placed, (x, y)))

# Where to cut a pipeline? Measured times of a micro-batch say so.
found = placement.choose(
    placed,
    ["CPU:1", "CPU:2"],
    costs=placement.measure(placed, x[:8]),
    objective="throughput",
    pipeline=placement.Pipeline("1f1b", micro_batches=4),
)
strategy = tfdist.PipelineStrategy(
    stages=[list(stage.nodes) for stage in found.stages],
    devices=[stage.devices[0] for stage in found.stages],
    micro_batches=4,
    schedule="1f1b",
)
with strategy.scope():
    model = strategy.pipeline(build())
    model.compile("adam", "sparse_categorical_crossentropy")
model.fit(x, y, batch_size=32, epochs=4, shuffle=False, verbose=0)
print("stages:", [stage.names for stage in model.stages])

same = np.abs(model.predict(x, verbose=0) - placed.predict(x, verbose=0)).max()
print(f"largest difference: {same:.1e}")
model.save("pipeline.keras")
