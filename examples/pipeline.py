"""Trains a small network as a pipeline of stages on several devices.

    python examples/pipeline.py --stages=2 --micro_batches=8 --schedule=1f1b

The stages are on the first GPUs; without any, as many logical CPU devices are
made, which show how it works and are no faster than one. Compare with
`--stages=1 --micro_batches=1`, which is plain training.
"""

from collections.abc import Sequence
import time

from absl import app
from absl import flags
import keras
import numpy as np
import tensorflow as tf

import tfdist

SIDE = 8  # pixels
CLASSES = 10
SCHEDULES = (
    "gpipe",
    "1f1b",
    "pipedream",
    "pipedream_2bw",
    "spectrain",
    "ftpipe",
)

FLAGS = flags.FLAGS
flags.DEFINE_integer("stages", 2, "Stages, and devices.", lower_bound=1)
flags.DEFINE_integer(
    "micro_batches", 8, "Parts into which a batch is cut.", lower_bound=1
)
flags.DEFINE_enum("schedule", "gpipe", SCHEDULES, "Order of the stages' work.")
flags.DEFINE_bool("recompute", False, "Keep only the inputs of stages.")
flags.DEFINE_integer("epochs", 10, "Passes over the data.", lower_bound=1)
flags.DEFINE_integer("batch_size", 64, "Images per update.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.1, "Of SGD with momentum.")


def make_devices(count: int) -> None:
    """Makes logical CPU devices where there are fewer than `count` GPUs."""
    if len(tf.config.list_physical_devices("GPU")) < count:
        tf.config.set_visible_devices([], "GPU")
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )


def load() -> list[tuple[np.ndarray, np.ndarray]]:
    """Loads the embedded digits.

    Returns:
      `(images, labels)` for training and for validation: `(examples, 8, 8, 1)
      float32` of 0 to 1, and `(examples,) int64`.
    """
    splits = []
    for split in tfdist.datasets.load("digits", split=["train", "test"]):
        images, labels = zip(*split.as_numpy_iterator(), strict=True)
        x = np.stack(images).reshape(-1, SIDE, SIDE, 1).astype("float32")
        splits.append(
            (x / tfdist.datasets.MAX_PIXEL["digits"], np.array(labels))
        )
    return splits


def build() -> keras.Model:
    """Builds a small convolutional network."""
    return keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def main(argv: Sequence[str]) -> None:
    """Trains, and prints where the stages are and how well it went."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}")
    make_devices(FLAGS.stages)
    keras.utils.set_random_seed(1)
    strategy = tfdist.PipelineStrategy(
        FLAGS.stages,
        micro_batches=FLAGS.micro_batches,
        schedule=FLAGS.schedule,
        recompute=FLAGS.recompute,
    )
    with strategy.scope():
        model = strategy.pipeline(build())
        model.compile(
            keras.optimizers.SGD(FLAGS.learning_rate, momentum=0.9),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
    for stage in model.stages:
        print(f"stage {stage.index} on {stage.device}: {stage.names}")
    (x, y), validation = load()
    begun = time.monotonic()
    model.fit(x, y, FLAGS.batch_size, FLAGS.epochs, verbose=2)
    loss, accuracy = model.evaluate(*validation, verbose=0)
    print(
        f"{time.monotonic() - begun:.1f} s, loss {loss:.4f}, "
        f"accuracy {accuracy:.4f}"
    )


if __name__ == "__main__":
    app.run(main)
