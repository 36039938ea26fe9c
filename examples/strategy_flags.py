"""Flags that choose how the workers train together, for any training script.

Import it before `app.run`, then make the strategy where your script begins:

    strategy = strategy_flags.make_strategy()

`--strategy` is "none" or a method of tfdist's registry with its settings,
such as `softsync:s=2`; the other flags are about the cluster.
"""

from collections.abc import Iterable
import math
import sys
from typing import Any

from absl import flags
import tensorflow as tf

import tfdist
from tfdist import method_text
from tfdist import testing
from tfdist.cluster import ClusterConfig
from tfdist.strategies import registry

FLAGS = flags.FLAGS

# How servers that are started again find what they held.
SNAPSHOTS = ("snapshot_dir", "snapshot_every")
FAULT_TOLERANCE = ("worker_timeout", *SNAPSHOTS)
# How training data is divided.
PORTIONS = ("work", "portions_per_worker")
# Flag -> what it needs of the method, and that in words.
FITS = {
    "worker_timeout": (
        lambda method: (
            method.waits or method.is_among_peers or FLAGS.work == "queue"
        ),
        "wait for each other",
    ),
    **dict.fromkeys(
        ("warmup_worker_steps", "worker_start"),
        (
            lambda method: not method.waits and method.needs_servers,
            "do not wait for each other",
        ),
    ),
    **dict.fromkeys(
        PORTIONS,
        (
            lambda method: (
                not method.waits
                and method.needs_servers
                and method.local_steps is None
            ),
            "do not wait for each other and exchange every step",
        ),
    ),
    **dict.fromkeys(
        SNAPSHOTS,
        (lambda method: method.needs_servers, "train with parameter servers"),
    ),
}

flags.DEFINE_string(
    "strategy",
    "async",
    "How the tasks train together: none, or a method with its settings after "
    "colons, as in softsync:s=2 or async:correction=dc_asgd(lambda_0=1). "
    f"Methods:\n{registry.describe()}",
)
flags.DEFINE_multi_string(
    "method_module",
    [],
    "FILE.py or package.module that calls tfdist.register, for methods of "
    "your own. May be repeated.",
)
flags.DEFINE_integer(
    "warmup_worker_steps",
    0,
    "Steps that the first worker trains alone before the others begin.",
    lower_bound=0,
)
flags.DEFINE_enum(
    "worker_start",
    "together",
    ["together", "staggered"],
    "How the remaining workers start then.",
)
flags.DEFINE_enum(
    "work",
    "shares",
    ["shares", "queue"],
    "How training data is divided: each worker has a share, or takes portions "
    "when it is free.",
)
flags.DEFINE_integer(
    "portions_per_worker",
    8,
    "Portions of an epoch for each worker with --work=queue.",
    lower_bound=1,
)
flags.DEFINE_float(
    "worker_timeout",
    10.0,
    "Seconds without a sign of life after which nobody waits for a worker.",
)
flags.DEFINE_string(
    "snapshot_dir",
    None,
    "A directory in which servers keep snapshots, for when they are started "
    "again.",
)
flags.DEFINE_float(
    "snapshot_every", 30.0, "Seconds between two snapshots.", lower_bound=0.1
)
flags.DEFINE_multi_string(
    "straggler",
    [],
    "`worker:seconds`, such as 1:0.5: worker 1 takes half a second longer in "
    "each step. May be repeated.",
)
flags.register_validator(
    "worker_timeout",
    lambda value: 0 < value < math.inf,
    message="must be a positive, finite number.",
)


def make_strategy(
    table_bytes: int | None = None, seed: int | None = None
) -> tf.distribute.Strategy:
    """Makes the strategy that the flags describe.

    On a parameter server this serves until training is over, and exits.

    Args:
        table_bytes: see `tfdist.ParameterServerStrategy`; plain Keras has no
            tables.
        seed: the same.

    Raises:
        SystemExit: the flags do not fit each other or the cluster, for example
            more backup workers than workers, or no method for several tasks.
    """
    text = FLAGS.strategy
    for module in FLAGS.method_module:
        try:
            registry.load(module)
        except ModuleNotFoundError as error:
            sys.exit(f"--method_module={module}: {error}")
    try:
        _check_fits()
        if text == "none":
            _check_alone()
            return tf.distribute.get_strategy()
        method = registry.method(text)
        others = {
            "fault_tolerance": tfdist.FaultTolerance(**_given(FAULT_TOLERANCE)),
            "seed": seed,
            **_given(set(FITS) - set(FAULT_TOLERANCE)),
        }
        if table_bytes is not None and not method.needs_servers:
            raise ValueError("it has no servers, on which tables could be.")
        if method.all_reduces_gradients:
            return tfdist.AllReduceStrategy(**others)
        if method.sends_to_peers:
            return tfdist.PeerToPeerStrategy(**method.peer_arguments, **others)
        if method.gossips:
            return tfdist.GossipStrategy(**others)
        return tfdist.ParameterServerStrategy(
            **method.arguments, **others, table_bytes=table_bytes
        )
    except ValueError as error:
        sys.exit(f"--strategy={text}: {error}")


def _check_alone() -> None:
    """Refuses plain Keras in a cluster, whose tasks would share their files."""
    spec = ClusterConfig.from_tf_config(needs_servers=False).spec
    counts = {job: len(addresses) for job, addresses in spec.items()}
    if sum(counts.values()) > 1:
        raise ValueError(
            "it must be a method where there are several tasks, each of which "
            f"would train alone. Received: a TF_CONFIG with tasks {counts}."
        )


def _given(names: Iterable[str]) -> dict[str, Any]:
    """The values of those flags that were given."""
    return {
        name: FLAGS[name].value
        for name in names
        if not FLAGS[name].using_default_value
    }


def name() -> str:
    """The name of the chosen method, without its settings."""
    return method_text.parse(FLAGS.strategy).name


def settings() -> dict[str, Any]:
    """The settings of the chosen method, and the flags about it."""
    if FLAGS.strategy == "none":
        return {}
    method = registry.method(FLAGS.strategy)
    ignored = set()
    if not FLAGS.warmup_worker_steps:
        ignored.add("worker_start")
    if FLAGS.snapshot_dir is None:
        ignored.update(SNAPSHOTS)
    if FLAGS.work == "shares":
        ignored.update(PORTIONS)
    return {
        **registry.settings(FLAGS.strategy),
        **{
            name: FLAGS[name].value
            for name, (fits, _) in FITS.items()
            if fits(method) and name not in ignored
        },
    }


def stragglers(num_workers: int) -> list[testing.Straggler]:
    """Callbacks that make workers slow as `--straggler` says.

    Args:
        num_workers: in the cluster.

    Raises:
        SystemExit: there is no such worker.
    """
    for text in FLAGS.straggler:
        if int(text.partition(":")[0]) >= num_workers:
            sys.exit(
                f"flag --straggler={text}: must name a worker from 0 to "
                f"{num_workers - 1}."
            )
    return [testing.Straggler.parse(text) for text in FLAGS.straggler]


def _check_fits() -> None:
    """Refuses flags that say nothing about the chosen method."""
    none = FLAGS.strategy == "none"
    method = None if none else registry.method(FLAGS.strategy)
    for name, (fits, words) in FITS.items():
        if not FLAGS[name].using_default_value and (none or not fits(method)):
            raise ValueError(f"--{name} is for workers that {words} only.")


def _check_straggler(texts: list[str]) -> bool:
    for text in texts:
        try:
            testing.Straggler.parse(text)
        except ValueError as error:
            raise flags.ValidationError(str(error)) from None
    return True


flags.register_multi_flags_validator(
    ["portions_per_worker", "work"],
    lambda values: (
        FLAGS["portions_per_worker"].using_default_value
        or values["work"] == "queue"
    ),
    message="--portions_per_worker is for --work=queue only.",
)
flags.register_validator("straggler", _check_straggler)
flags.register_multi_flags_validator(
    ["worker_start", "warmup_worker_steps"],
    lambda values: (
        FLAGS["worker_start"].using_default_value
        or values["warmup_worker_steps"]
    ),
    message="--worker_start is for --warmup_worker_steps of at least 1 only.",
)
