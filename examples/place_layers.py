"""Trains a small network whose layers are on several devices.

    python examples/place_layers.py --placement='conv*=GPU:0,head=GPU:1'
    python examples/place_layers.py --memory_limit_mb=2.5

With `--placement` layers go where it says; without, a placement is found from
measured costs. Without GPUs, as many logical CPU devices are made as there are
in `--devices`: `CPU:0` and `CPU:1` by default. They show how it works and are
no faster than one.
"""

from collections.abc import Sequence

from absl import app
from absl import flags
import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist import placement

SIDE = 8  # pixels
CLASSES = 10

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "placement",
    [],
    "Pairs of a layer, or a pattern, and a device: conv*=GPU:0.",
)
flags.DEFINE_integer("devices", 2, "Devices to use.", lower_bound=1)
flags.DEFINE_float(
    "memory_limit_mb",
    None,
    "Megabytes of each device, for a placement that is found.",
    lower_bound=0,
)
flags.DEFINE_integer("epochs", 5, "Passes over the data.", lower_bound=1)
flags.DEFINE_integer("batch_size", 64, "Images per step.", lower_bound=1)


def parse(pairs: Sequence[str]) -> dict[str, str]:
    """Reads `--placement`.

    Args:
      pairs: Such as "conv*=GPU:0".

    Returns:
      A device for each layer or pattern.

    Raises:
      app.UsageError: A pair has no "=".
    """
    for pair in pairs:
        if "=" not in pair:
            raise app.UsageError(
                "Flag --placement must be pairs such as conv*=GPU:0. "
                f"Received: {pair}"
            )
    return dict(pair.split("=", 1) for pair in pairs)


def find_devices(count: int) -> list[str]:
    """Names of GPUs, or of logical CPU devices that it makes.

    Args:
      count: How many.

    Returns:
      Names for `tfdist.placement.place`.
    """
    if len(tf.config.list_physical_devices("GPU")) >= count:
        return [f"GPU:{k}" for k in range(count)]
    tf.config.set_visible_devices([], "GPU")
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * count
    )
    return [f"CPU:{k}" for k in range(count)]


def load(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Loads the embedded digits.

    Args:
      split: "train" or "test".

    Returns:
      Images, (examples, 8, 8, 1) float32 of 0 to 1, and labels, (examples,).
    """
    examples = tfdist.datasets.load("digits", split=split)
    images, labels = zip(*examples.as_numpy_iterator(), strict=True)
    x = np.stack(images).reshape(-1, SIDE, SIDE, 1).astype("float32")
    return x / tfdist.datasets.MAX_PIXEL["digits"], np.array(labels)


def build() -> keras.Model:
    """Two convolutions, one of them beside a skip, and a head.

    Returns:
      A functional model that is not compiled.
    """
    inputs = keras.Input((SIDE, SIDE, 1))
    x = keras.layers.Conv2D(32, 3, padding="same", name="conv_0")(inputs)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.ReLU(name="relu")(x)
    x = x + keras.layers.Conv2D(32, 3, padding="same", name="conv_1")(x)
    x = keras.layers.Flatten(name="flat")(x)
    outputs = keras.layers.Dense(CLASSES, "softmax", name="head")(x)
    return keras.Model(inputs, outputs)


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}")
    devices = find_devices(FLAGS.devices)
    x, y = load("train")
    model = build()
    batch = x[: FLAGS.batch_size], y[: FLAGS.batch_size]
    if FLAGS.placement:
        placement.place(model, parse(FLAGS.placement))
    else:
        limit = FLAGS.memory_limit_mb
        placement.place(
            model,
            "auto",
            devices,
            data=batch[0],
            memory_limit=limit and limit * 1e6,
        )
    model.compile(
        "adam", "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    print(placement.report(model, batch))
    model.fit(x, y, FLAGS.batch_size, epochs=FLAGS.epochs, verbose=2)
    _, accuracy = model.evaluate(*load("test"), verbose=0)
    print(f"test accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    app.run(main)
