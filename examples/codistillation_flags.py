"""Flags of groups that teach each other, for any training script.

Which group a process is in says `TF_CONFIG`, as set by `tfdist launch
--num_groups=2 ...`. Read it where your script begins, and wrap the model:

    group = codistillation_flags.read_group()
    with strategy.scope():
        model = codistillation_flags.wrap(build_model())
        model.compile(...)
    callback = codistillation_flags.make_callback(group, is_chief=is_chief)
    model.fit(..., callbacks=[callback])

The script's own flags `--output_dir` and `--seed` are those of all groups.
"""

import math
import os
import pathlib
import sys
from typing import Any

from absl import flags
import keras
import tensorflow as tf

from tfdist import codistillation
from tfdist.codistillation import quantization

FLAGS = flags.FLAGS
LAUNCH = "tfdist launch --num_groups=2"
NAMES = (
    "exchange",
    "exchange_dir",
    "exchange_every",
    "burn_in_steps",
    "distillation_weight",
    "temperature",
    "quantise",
)

flags.DEFINE_enum(
    "exchange",
    "directory",
    ["directory", "servers"],
    "Through what groups exchange weights: files, or their parameter servers.",
)
flags.DEFINE_string(
    "exchange_dir",
    None,
    "Directory of these files, the same for all groups. Default: `exchange` "
    "in --output_dir. A run begins by removing its own group's files of the "
    "run before.",
)
flags.DEFINE_integer(
    "exchange_every",
    50,
    "Updates of a group between two exchanges.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "burn_in_steps",
    100,
    "Updates of a group before it teaches and is taught.",
    lower_bound=0,
)
flags.DEFINE_float(
    "distillation_weight", 1.0, "Of what teachers say in the loss; 0 or more."
)
flags.DEFINE_float(
    "temperature",
    1.0,
    "Of teachers' and students' softmax in that part of the loss, positive.",
)
flags.DEFINE_enum(
    "quantise",
    "float32",
    list(quantization.DTYPES),
    "What weights travel in; float32 is as they are.",
)
flags.register_validator(
    "distillation_weight",
    lambda value: 0 <= value < math.inf,
    message="must be a finite number of at least 0.",
)
flags.register_validator(
    "temperature",
    lambda value: 0 < value < math.inf,
    message="must be a positive, finite number.",
)
flags.register_multi_flags_validator(
    ["exchange", "exchange_dir"],
    lambda values: (
        values["exchange_dir"] is None or values["exchange"] == "directory"
    ),
    message="--exchange_dir is for --exchange=directory only.",
)


def only_with(switch: str) -> None:
    """Has these flags refused without another one.

    Args:
        switch: name of a boolean flag.
    """
    for name in NAMES:
        flags.register_multi_flags_validator(
            [switch, name],
            lambda values, name=name: (
                values[switch] or FLAGS[name].using_default_value
            ),
            message=f"--{name} is for --{switch} only.",
        )


def check_output_dir() -> None:
    """Has `--output_dir` refused where a file is in its place, or above it."""
    flags.register_validator(
        "output_dir",
        lambda value: all(
            path.is_dir() or not path.exists()
            for path in (pathlib.Path(value), *pathlib.Path(value).parents)
        ),
        message="must be a directory, or the path of a new one.",
    )


def read_group(codistill: bool | None = None) -> codistillation.Group | None:
    """The group of this process; None where it is the only one.

    Args:
        codistill: whether `--codistill` was given; None in scripts without
            this flag, whose groups always teach each other.

    Raises:
        SystemExit: `TF_CONFIG` is malformed, or does not fit the flags.
    """
    try:
        group = codistillation.Group.from_tf_config()
    except ValueError as error:
        sys.exit(str(error))
    if group.num_groups == 1:
        group = None
    if codistill and group is None:
        sys.exit(
            'flag --codistill: TF_CONFIG must say under "codistillation" '
            "which of several groups this is, as it does under `"
            f"{LAUNCH} --num_ps=0 --num_workers=1 SCRIPT -- --codistill`. "
            "Received: nothing about groups."
        )
    if codistill is False and group is not None:
        sys.exit(
            f"This is group {group.index} of {group.num_groups}, and without "
            "--codistill all would train the same and write the same files. "
            "Pass the flag, or start one group."
        )
    if group and FLAGS.exchange == "servers":
        if not group.servers or not all(group.servers):
            sys.exit(
                "flag --exchange=servers: every group must have parameter "
                f"servers, such as {LAUNCH} --num_ps=1 ..., which TF_CONFIG "
                'lists as "servers" under "codistillation". Received: '
                f"{group.servers}. Without servers take --exchange=directory."
            )
    return group


def group_dir(group: codistillation.Group | None) -> pathlib.Path:
    """Where the results of this group go, below `--output_dir`."""
    path = pathlib.Path(FLAGS.output_dir)
    return path if group is None else path / f"group-{group.index}"


def group_seed(group: codistillation.Group | None) -> int:
    """`--seed`, another one in each group.

    Groups that begin alike have less to teach each other.
    """
    return FLAGS.seed + (group.index if group else 0)


def wrap(model: keras.Model) -> codistillation.Codistilled:
    """Makes a model that gives logits of classes learn from its peers too."""
    return codistillation.Codistilled(
        model,
        burn_in_steps=FLAGS.burn_in_steps,
        weight=FLAGS.distillation_weight,
        loss=codistillation.CodistillationLoss(
            "cross_entropy", from_logits=True, temperature=FLAGS.temperature
        ),
    )


def make_callback(
    group: codistillation.Group, *, is_chief: bool, whole_models: bool = False
) -> codistillation.Codistillation:
    """Makes the callback that exchanges weights with the peers.

    Args:
        group: of this process.
        is_chief: whether this process publishes the group's weights.
        whole_models: whether groups may have different architectures.
    """
    if FLAGS.exchange == "servers":
        exchange = codistillation.PeerServers(dtype=FLAGS.quantise)
    else:
        path = FLAGS.exchange_dir or os.path.join(FLAGS.output_dir, "exchange")
        if is_chief:
            _remove_earlier(os.path.join(path, f"group-{group.index}"))
        exchange = codistillation.SharedDirectory(
            path, dtype=FLAGS.quantise, whole_models=whole_models
        )
    return codistillation.Codistillation(
        exchange,
        group=group,
        exchange_every=FLAGS.exchange_every,
        log_dir=group_dir(group),
    )


def report(callback: codistillation.Codistillation) -> dict[str, Any]:
    """Flags, and what came from each peer, for a `summary.json`."""
    return {
        "group": callback.group.index,
        "num_groups": callback.group.num_groups,
        **{name: FLAGS[name].value for name in NAMES},
        "peers": callback.summary,
    }


def _remove_earlier(directory: str) -> None:
    """Removes what an earlier run has published as this group.

    Or else the peers would be taught by it, trained to its end, before this
    run has published anything.
    """
    pattern = os.path.join(directory, "checkpoint-*-step-*")
    for path in tf.io.gfile.glob(pattern):
        tf.io.gfile.remove(path)
