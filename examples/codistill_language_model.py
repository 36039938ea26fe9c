r"""Groups that teach each other to predict the next character of a text.

Each group trains on its own part of the text, Python's own documentation. Two
groups, each one process, or each a cluster that trains as `--strategy` says:

    tfdist launch --num_groups=2 --num_ps=0 --num_workers=1 \
        examples/codistill_language_model.py
    tfdist launch --num_groups=2 --num_ps=1 --num_workers=2 \
        examples/codistill_language_model.py -- \
        --strategy=sync --exchange=servers

Without groups one network learns all of the text alone:

    python examples/codistill_language_model.py

Teachers help where a group has too little text to learn from. By default it
reads 50,000 characters 25 times: two groups came to 1.48 nats per character of
other text, and to 1.55 with `--distillation_weight=0` (means of both groups
with two seeds). With `--characters=440000 --epochs=4`, where all is new and
teachers are behind, they came to 1.49, and without to 1.44 (one seed).

`--help` lists the values of `--strategy`. The chief of each group writes
`summary.json` to `group-0`, `group-1`, ... in `--output_dir`.
"""

import json
import math
import pydoc_data.topics
import sys
import time
import unicodedata

from absl import app
from absl import flags
import codistillation_flags
import keras
import numpy as np
import strategy_flags
import tensorflow as tf

import tfdist
from tfdist import codistillation

ALPHABET = " abcdefghijklmnopqrstuvwxyz0123456789.,:;()[]\"'`*=_-+/<>{}#@\n"
SEQUENCE_LENGTH = 48  # characters
VALIDATION_SHARE = 0.05  # of the text, its end
RECURRENT_LAYERS = (keras.layers.GRU, keras.layers.LSTM)

FLAGS = flags.FLAGS
# For --help.
flags.adopt_module_key_flags(strategy_flags)
flags.adopt_module_key_flags(codistillation_flags)
flags.DEFINE_integer("epochs", 25, "Passes over the text.", lower_bound=1)
flags.DEFINE_integer(
    "batch_size", 32, "Sequences per step of one worker.", lower_bound=1
)
flags.DEFINE_float("learning_rate", 3e-3, "Step size of Adam, positive.")
flags.DEFINE_integer(
    "characters",
    100_000,
    "Of the text to train on, of all groups together: the first ones. There "
    "are some 440,000.",
    lower_bound=1,
)
flags.DEFINE_integer("units", 96, "Of the recurrent layer.", lower_bound=1)
flags.DEFINE_bool(
    "different_architectures",
    False,
    "Whether group 0 has a GRU and all others an LSTM. Groups exchange whole "
    "models then.",
)
flags.DEFINE_string(
    "output_dir", "runs/codistill_language_model", "Where the results go."
)
flags.DEFINE_integer(
    "seed",
    1,
    "Seed of weights and the order of sequences. Group k uses seed + k.",
)
codistillation_flags.check_output_dir()
flags.register_validator(
    "learning_rate",
    lambda value: 0 < value < math.inf,
    message="must be a positive, finite number.",
)
flags.register_multi_flags_validator(
    ["different_architectures", "exchange", "quantise"],
    lambda values: (
        not values["different_architectures"]
        or (values["exchange"], values["quantise"]) == ("directory", "float32")
    ),
    message="--different_architectures is for --exchange=directory "
    "--quantise=float32 only: whole models are files as Keras saves them.",
)


def main(argv: list[str]) -> None:
    """Trains, evaluates and, on the chief of a group, reports."""
    if len(argv) > 1:
        raise app.UsageError(f"Arguments must be flags. Received: {argv[1:]}")
    group = codistillation_flags.read_group()
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
    train, validation = load_sequences(group)
    layer = RECURRENT_LAYERS[
        bool(group and group.index and FLAGS.different_architectures)
    ]
    with strategy.scope():
        model = build_model(layer)
        if group is not None:
            model = codistillation_flags.wrap(model)
        model.compile(
            optimizer=keras.optimizers.Adam(FLAGS.learning_rate),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    monitor = None
    if cluster is not None:
        monitor = tfdist.callbacks.ClusterMonitor(log_dir=output_dir)
        callbacks.append(monitor)
    codistilling = None
    if group is not None:
        # After the monitor, which waits at the end for the other workers.
        codistilling = codistillation_flags.make_callback(
            group,
            is_chief=is_chief,
            whole_models=FLAGS.different_architectures,
        )
        callbacks.append(codistilling)

    start = time.monotonic()
    history = model.fit(
        batches_of(train, seed),
        validation_data=batches_of(validation),
        epochs=FLAGS.epochs,
        shuffle=False,  # The pipeline has done so.
        callbacks=callbacks,
        verbose=2 if is_chief else 0,
    )
    wall_seconds = time.monotonic() - start
    if not is_chief:
        return

    loss = model.evaluate(batches_of(validation), verbose=0, return_dict=True)
    nats = loss["loss"]
    summary = {
        "strategy": strategy_flags.name(),
        "strategy_flags": strategy_flags.settings(),
        "num_workers": num_workers,
        "num_ps": cluster.num_ps if cluster else 0,
        "layer": layer.__name__,
        "sequences": len(train),
        "epochs": FLAGS.epochs,
        "batch_size": FLAGS.batch_size,
        "learning_rate": FLAGS.learning_rate,
        "seed": seed,
        "nats_per_character": nats,
        "bits_per_character": nats / math.log(2),
        "nats_per_character_by_epoch": history.history.get("val_loss", []),
        "wall_seconds": wall_seconds,
        "updates_applied": int(model.optimizer.iterations.numpy()),
        **(monitor.summary if monitor else {}),
    }
    if codistilling is not None:
        summary["codistillation"] = codistillation_flags.report(codistilling)
    text = json.dumps(summary, indent=2, default=float)
    (output_dir / "summary.json").write_text(text + "\n")
    print(
        f"{nats:.3f} nats ({summary['bits_per_character']:.3f} bits) per "
        f"character of other text, after {FLAGS.epochs} epochs and "
        f"{summary['updates_applied']} updates in {wall_seconds:.1f} s. "
        f"Results: {output_dir}"
    )


def load_sequences(
    group: codistillation.Group | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Cuts the text into sequences, and deals those for training out.

    Args:
        group: which part to take for training; None for all.

    Returns:
        Sequences for training and for validation, `(sequences,
        SEQUENCE_LENGTH + 1) int32`: numbers of characters, of which the last
        is the first of the next sequence in the text.

    Raises:
        SystemExit: `--characters` are not enough.
    """
    topics = pydoc_data.topics.topics
    whole = "\n".join(topics[name] for name in sorted(topics)).lower()
    whole = unicodedata.normalize("NFKD", whole)
    numbers = {character: k for k, character in enumerate(ALPHABET)}
    codes = np.array([numbers[c] for c in whole if c in numbers], "int32")
    windows = np.lib.stride_tricks.sliding_window_view(
        codes, SEQUENCE_LENGTH + 1
    )[::SEQUENCE_LENGTH]
    # Apart by one: nothing is in both.
    begin = int((1 - VALIDATION_SHARE) * len(windows))
    train, validation = windows[:begin], windows[begin + 1 :]
    train = train[: FLAGS.characters // SEQUENCE_LENGTH]
    num_groups = group.num_groups if group else 1
    if len(train) < num_groups:
        sys.exit(
            f"flag --characters={FLAGS.characters}: must be at least "
            f"{num_groups * SEQUENCE_LENGTH}, a sequence for each group."
        )
    if group is not None:
        train = group.shard(train)
    return train, validation


def batches_of(sequences: np.ndarray, seed: int | None = None):
    """Makes batches of inputs and, for each position, the next character.

    Every worker of a cluster makes the same ones; the strategy gives each its
    own share of those for training.

    Args:
        sequences: as `load_sequences` returns them.
        seed: of their order, the same on all workers of a cluster; None for
            that of the text.

    Returns:
        A `tf.data.Dataset` of `(x, y)`, each `(batch, SEQUENCE_LENGTH) int32`.
    """
    dataset = tf.data.Dataset.from_tensor_slices(
        (sequences[:, :-1], sequences[:, 1:])
    )
    if seed is not None:
        dataset = dataset.shuffle(len(sequences), seed=seed)
    return dataset.batch(FLAGS.batch_size).prefetch(tf.data.AUTOTUNE)


def build_model(layer: type[keras.layers.RNN]) -> keras.Model:
    """Builds the network, which gives logits of the character after each.

    Args:
        layer: `keras.layers.GRU` or `LSTM`.
    """
    return keras.Sequential(
        [
            keras.Input((SEQUENCE_LENGTH,), dtype="int32"),
            keras.layers.Embedding(len(ALPHABET), 32),
            layer(FLAGS.units, return_sequences=True),
            keras.layers.Dense(len(ALPHABET)),
        ]
    )


if __name__ == "__main__":
    app.run(main)
