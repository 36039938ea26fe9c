r"""Trains a small convolutional network on images, alone or on a cluster.

Every task of a cluster runs this same script; `TF_CONFIG` says who it is:

    python examples/train_image_classifier.py --strategy=none
    tfdist launch --num_ps=1 --num_workers=2 \
        examples/train_image_classifier.py -- --strategy=async

`--help` lists the values of `--strategy`.

The chief writes `summary.json` and `training.png` to `--output_dir`, an
evaluator (`tfdist launch --evaluator ...`) writes `eval.jsonl`.

Groups that teach each other train on a part of the images each, and write to
`group-0`, `group-1`, ... in `--output_dir`:

    tfdist launch --num_groups=2 --num_ps=0 --num_workers=1 \
        examples/train_image_classifier.py -- --codistill
"""

import json
import sys
import time
from typing import Any

from absl import app
from absl import flags
import codistillation_flags
import keras
import strategy_flags
import tensorflow as tf
import training_picture

import tfdist
from tfdist import codistillation
from tfdist import datasets

OPTIMIZERS = {
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
    "adagrad": keras.optimizers.Adagrad,
    "rmsprop": keras.optimizers.RMSprop,
    "sgd": keras.optimizers.SGD,
}
VALIDATION_PERCENT = 10  # of the training split
SHUFFLE_BUFFER = 10_000  # images
RESIZED_SIDE = 64  # pixels, for data sets whose images differ in size

FLAGS = flags.FLAGS
# For --help.
flags.adopt_module_key_flags(strategy_flags)
flags.adopt_module_key_flags(codistillation_flags)
flags.DEFINE_string(
    "dataset",
    "digits",
    "`digits` (embedded) or any image classification data set of TensorFlow "
    "Datasets, such as mnist or cifar10 (downloaded).",
)
flags.DEFINE_integer("epochs", 15, "Passes over the data.", lower_bound=1)
flags.DEFINE_integer(
    "batch_size", 32, "Images per step of one worker.", lower_bound=1
)
flags.DEFINE_enum("optimizer", "adam", sorted(OPTIMIZERS), "Keras optimizer.")
flags.DEFINE_float("learning_rate", 1e-3, "Step size, positive.")
flags.DEFINE_string(
    "output_dir", "runs/train_image_classifier", "Where the results go."
)
flags.DEFINE_string(
    "data_dir",
    None,
    "Where prepared data lies. Default: TFDS_DATA_DIR, else "
    "~/tensorflow_datasets.",
)
flags.DEFINE_float(
    "evaluation_seconds",
    10.0,
    "Seconds between two evaluations by the evaluator.",
    lower_bound=0.0,
)
flags.DEFINE_integer(
    "seed",
    1,
    "Seed of weights, dropout and the order of images. With --codistill, "
    "group k uses seed + k.",
)
flags.DEFINE_bool(
    "codistill",
    False,
    "Whether the groups that `tfdist launch --num_groups=2` starts teach each "
    "other.",
)
codistillation_flags.only_with("codistill")
codistillation_flags.check_output_dir()
flags.register_validator(
    "learning_rate",
    lambda value: 0 < value < float("inf"),
    message="must be a positive, finite number.",
)


def main(argv: list[str]) -> None:
    """Trains, evaluates and, on the chief, reports."""
    if len(argv) > 1:
        raise app.UsageError(f"Arguments must be flags. Received: {argv[1:]}")
    group = codistillation_flags.read_group(FLAGS.codistill)
    # On a parameter server this line serves until training is over, and exits.
    strategy = strategy_flags.make_strategy()
    cluster = getattr(strategy, "cluster", None)
    num_workers = cluster.num_workers if cluster else 1
    callbacks = strategy_flags.stragglers(num_workers)
    is_chief = cluster is None or cluster.is_chief
    output_dir = codistillation_flags.group_dir(group)
    output_dir.mkdir(parents=True, exist_ok=True)

    seed = codistillation_flags.group_seed(group)
    keras.utils.set_random_seed(seed)
    (train, validation, test), num_classes = load_data(seed, group)
    with strategy.scope():
        model = build_model(train.element_spec[0].shape[1:], num_classes)
        if group is not None:
            model = codistillation_flags.wrap(model)
        model.compile(
            optimizer=OPTIMIZERS[FLAGS.optimizer](FLAGS.learning_rate),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    if cluster is not None and cluster.is_evaluator:
        tfdist.SidecarEvaluator(
            model,
            data=test,
            log_dir=output_dir,
            interval_seconds=FLAGS.evaluation_seconds,
        ).start()
        return
    monitor = None
    if cluster is not None:
        monitor = tfdist.callbacks.ClusterMonitor(log_dir=output_dir)
        callbacks.append(monitor)
    codistilling = None
    if group is not None:
        # After the monitor, which waits at the end for the other workers.
        codistilling = codistillation_flags.make_callback(
            group, is_chief=is_chief
        )
        callbacks.append(codistilling)

    start = time.monotonic()
    history = model.fit(
        train,
        validation_data=validation,
        epochs=FLAGS.epochs,
        shuffle=False,  # The pipeline has done so.
        callbacks=callbacks,
        verbose=2 if is_chief else 0,
    )
    wall_seconds = time.monotonic() - start
    if not is_chief:
        return

    _, test_accuracy = model.evaluate(test, verbose=0)
    summary = {
        "dataset": FLAGS.dataset,
        "strategy": strategy_flags.name(),
        "strategy_flags": strategy_flags.settings(),
        "straggler": FLAGS.straggler,
        "num_workers": num_workers,
        "num_ps": cluster.num_ps if cluster else 0,
        "epochs": FLAGS.epochs,
        "batch_size": FLAGS.batch_size,
        "optimizer": FLAGS.optimizer,
        "learning_rate": FLAGS.learning_rate,
        "seed": seed,
        "test_accuracy": test_accuracy,
        "wall_seconds": wall_seconds,
        **(monitor.summary if monitor else one_process_summary(model)),
    }
    if codistilling is not None:
        summary["codistillation"] = codistillation_flags.report(codistilling)
    text = json.dumps(summary, indent=2, default=float)
    (output_dir / "summary.json").write_text(text + "\n")
    steps = training_picture.read_steps(output_dir) if monitor else {}
    training_picture.draw(
        history.history, steps, summary, output_dir / "training.png"
    )
    print(
        f"Test accuracy {test_accuracy:.4f} after {FLAGS.epochs} epochs and "
        f"{summary['updates_applied']} updates in {wall_seconds:.1f} s. "
        f"Results: {output_dir}"
    )


def load_data(
    seed: int, group: codistillation.Group | None
) -> tuple[list[tf.data.Dataset], int]:
    """Loads the images, scaled to 0..1 and batched.

    Every worker makes the same pipeline over all images; the strategy gives
    each its own share of the training batches. Hence the seed of the shuffle,
    which must not differ between workers.

    Args:
        seed: of the shuffle.
        group: whose part of the training images to take; None for all.

    Returns:
        `[training, validation, test]`, each of batches `((batch, height, width,
        channels) float32, (batch,) int64)`, and the number of classes.

    Raises:
        SystemExit: if the data set cannot be had, or is not one of images and
            labels in splits named `train` and `test`.
    """
    held_out = f"train[:{VALIDATION_PERCENT}%]"
    rest = f"train[{VALIDATION_PERCENT}%:]"
    try:
        splits, info = datasets.load(
            FLAGS.dataset,
            split=[rest, held_out, "test"],
            data_dir=FLAGS.data_dir,
            with_info=True,
        )
    except (ValueError, datasets.DatasetUnavailableError) as error:
        sys.exit(f"flag --dataset={FLAGS.dataset}: {error}")
    if info.supervised_keys != ("image", "label"):
        sys.exit(
            f"flag --dataset={FLAGS.dataset}: must have elements (image, "
            f"label), has {info.supervised_keys}."
        )
    max_pixel = datasets.MAX_PIXEL.get(info.name, 255)

    def prepare(image, label):
        image = tf.cast(image, tf.float32) / max_pixel
        if not image.shape.is_fully_defined():
            image = tf.image.resize(image, (RESIZED_SIDE, RESIZED_SIDE))
        return image, label

    if group is not None:
        splits = [group.shard(splits[0]), *splits[1:]]
    train, validation, test = [
        split.map(prepare, tf.data.AUTOTUNE) for split in splits
    ]
    train = train.shuffle(SHUFFLE_BUFFER, seed=seed)
    # By batches: these data sets have fewer files than a cluster has workers.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.DATA
    )
    train = train.with_options(options)
    batched = [
        split.batch(FLAGS.batch_size).prefetch(tf.data.AUTOTUNE)
        for split in (train, validation, test)
    ]
    return batched, info.features["label"].num_classes


def build_model(image_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """Builds the network: two convolutions and two dense layers.

    Args:
        image_shape: `(height, width, channels)`.
        num_classes: number of logits.
    """
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(image_shape),
            layers.Conv2D(32, 3, padding="same", use_bias=False),
            # The default momentum of 0.99 takes hundreds of steps to settle.
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Conv2D(64, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(64, activation="relu"),
            layers.Dense(num_classes),
        ]
    )


def one_process_summary(model: keras.Model) -> dict[str, Any]:
    """What a cluster's monitor reports, for training without one."""
    updates = int(model.optimizer.iterations.numpy())
    return {
        "updates_applied": updates,
        "gradients_pushed": updates,
        "gradients_accepted": updates,
        "gradients_dropped": 0,
        "waited_seconds": 0.0,
        "staleness": {"mean": 0.0, "p95": 0.0, "max": 0},
    }


if __name__ == "__main__":
    app.run(main)
