"""Flags that choose how the workers train together, for any training script.

Import it before `app.run`, then make the strategy where your script begins:

    strategy = strategy_flags.make_strategy()

A flag that says nothing about the chosen strategy is refused. Those of
strategies with local steps between exchanges are in `local_steps_flags.py`.
"""

import math
import sys
from typing import Any

from absl import flags
import local_steps_flags
from local_steps_flags import given
import tensorflow as tf

import tfdist
from tfdist import correction
from tfdist import synchronization
from tfdist import testing

FLAGS = flags.FLAGS


CORRECTIONS = {
    "none": lambda: None,
    "inverse_staleness": correction.InverseStaleness,
    "gap_aware": lambda: correction.GapAware(backups=FLAGS.backups),
    "fasgd": correction.FASGD,
}


def _correction() -> correction.Correction | None:
    return CORRECTIONS[FLAGS.correction]()


def _common() -> dict[str, Any]:
    """Arguments that several strategies have."""
    return given(
        "worker_timeout",
        "communication",
        "warmup_worker_steps",
        "joining",
        *SNAPSHOTS,
    )


def _softsync(**common: Any) -> tfdist.SoftSyncStrategy:
    if FLAGS.softsync_n is None:
        gradients = {"s": FLAGS.softsync_s}
    else:
        gradients = {"n": FLAGS.softsync_n}
    return tfdist.SoftSyncStrategy(
        **gradients, correction=_correction(), **common
    )


# Name -> what makes the strategy, of the arguments that several have.
# Everything else in a script is the same for each of them.
STRATEGIES = {
    "none": tf.distribute.get_strategy,
    "async": lambda **common: tfdist.AsyncStrategy(
        correction=_correction(), **common
    ),
    "sync": lambda **common: tfdist.ParameterServerStrategy(
        synchronization=synchronization.Sync(on_drop=FLAGS.on_drop), **common
    ),
    "backup_workers": lambda **common: tfdist.BackupWorkersStrategy(
        backup_workers=FLAGS.backup_workers, **given("on_drop"), **common
    ),
    "softsync": _softsync,
    "bounded_staleness": lambda **common: tfdist.BoundedStalenessStrategy(
        max_staleness=FLAGS.max_staleness, correction=_correction(), **common
    ),
    "dc_asgd": lambda **common: tfdist.DCASGDStrategy(
        **given("lambda_0", "variance_decay", "backups"), **common
    ),
    "dana": lambda **common: tfdist.DANAStrategy(
        variant=FLAGS.dana_variant,
        momentum=FLAGS.dana_momentum,
        **given("lambda_0", "backups"),
        **common,
    ),
    **local_steps_flags.STRATEGIES,
}
DO_NOT_WAIT = (
    "async",
    "softsync",
    "dc_asgd",
    "dana",
    "async_local_sgd",
    "easgd",
    "downpour",
)
# How servers that are started again find what they held.
SNAPSHOTS = ("snapshot_dir", "snapshot_every")
WITH_SERVERS = tuple(name for name in STRATEGIES if name != "none")
# Flag -> the strategies that it says something about.
FITS = {
    "backup_workers": ("backup_workers",),
    "on_drop": ("sync", "backup_workers"),
    "softsync_s": ("softsync",),
    "softsync_n": ("softsync",),
    "correction": ("async", "softsync", "bounded_staleness"),
    "lambda_0": ("dc_asgd", "dana"),
    "variance_decay": ("dc_asgd",),
    "dana_variant": ("dana",),
    "dana_momentum": ("dana",),
    "backups": ("async", "softsync", "bounded_staleness", "dc_asgd", "dana"),
    "max_staleness": ("bounded_staleness",),
    **local_steps_flags.FITS,
    "communication": ("parameter_averaging", "bmuf", "diloco", "easgd"),
    "warmup_worker_steps": DO_NOT_WAIT,
    "joining": DO_NOT_WAIT,
    **dict.fromkeys(SNAPSHOTS, WITH_SERVERS),
    "worker_timeout": (
        "sync",
        "backup_workers",
        "bounded_staleness",
        "parameter_averaging",
        "bmuf",
        "diloco",
    ),
}

flags.DEFINE_enum(
    "strategy", "async", list(STRATEGIES), "How the tasks train together."
)
flags.DEFINE_integer(
    "backup_workers",
    1,
    "Of all workers, how many each update does not wait for.",
    lower_bound=0,
)
flags.DEFINE_enum(
    "on_drop",
    "next",
    ["next", "retry"],
    "What a worker whose gradient was dropped goes on with: its next batch, "
    "or the same one once more.",
)
flags.DEFINE_integer(
    "softsync_s", 2, "Gradients that each update averages.", lower_bound=1
)
flags.DEFINE_integer(
    "softsync_n",
    None,
    "Instead of --softsync_s, its paper's splitting parameter: each update "
    "averages floor(workers / n) gradients.",
    lower_bound=1,
)
flags.DEFINE_enum(
    "correction",
    "none",
    list(CORRECTIONS),
    "What is done about a late gradient: it counts less with its staleness, "
    "or with how far its parameters have moved; or each element has a rate of "
    "its own (--optimizer=sgd).",
)
flags.DEFINE_float(
    "lambda_0",
    None,
    "How much delays are compensated for. Default: 0.04; 2 with "
    "--variance_decay, and with --dana_variant=dc.",
    lower_bound=0.0,
)
flags.DEFINE_float(
    "variance_decay",
    None,
    "Makes the compensation adaptive: the decay of the mean of squared "
    "gradients that it is divided by the root of, such as 0.95.",
    lower_bound=0.0,
)
flags.DEFINE_enum(
    "dana_variant",
    "slim",
    ["slim", "zero", "dc"],
    "Who keeps the workers' momenta: they or the servers, which may also "
    "compensate for delays. All take --optimizer=sgd.",
)
flags.DEFINE_float(
    "dana_momentum", 0.9, "Momentum of each worker.", lower_bound=0.0
)
flags.DEFINE_enum(
    "backups",
    "server",
    ["server", "worker"],
    "Who keeps the parameters that a gradient was computed from, where that "
    "is needed.",
)
flags.DEFINE_integer(
    "max_staleness",
    3,
    "Steps by which a worker may be ahead of the slowest.",
    lower_bound=0,
)
flags.DEFINE_enum(
    "communication",
    "parameter_server",
    ["parameter_server", "ring"],
    "Through what workers exchange: servers, or, in a cluster without any, "
    "each other.",
)
flags.DEFINE_integer(
    "warmup_worker_steps",
    0,
    "Steps that the first worker trains alone before the others begin.",
    lower_bound=0,
)
flags.DEFINE_enum(
    "joining",
    "at_once",
    ["at_once", "one_by_one"],
    "How the others begin then.",
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


def make_strategy() -> tf.distribute.Strategy:
    """Makes the strategy that the flags describe.

    On a parameter server this serves until training is over, and exits.

    Raises:
        SystemExit: the flags do not fit the cluster, for example more backup
            workers than workers.
    """
    try:
        return STRATEGIES[FLAGS.strategy](**_common())
    except ValueError as error:
        sys.exit(f"--strategy={FLAGS.strategy}: {error}")


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


def settings() -> dict[str, Any]:
    """The flags about the chosen strategy: name -> value."""
    ignored = {"softsync_s"} if FLAGS.softsync_n else {"softsync_n"}
    if not _has_backups():
        ignored.add("backups")
    if not FLAGS.warmup_worker_steps:
        ignored.add("joining")
    if FLAGS.snapshot_dir is None:
        ignored.update(SNAPSHOTS)
    return {
        name: FLAGS[name].value
        for name, strategies in FITS.items()
        if FLAGS.strategy in strategies and name not in ignored
    }


def _has_backups() -> bool:
    if FLAGS.strategy == "dana":
        return FLAGS.dana_variant == "dc"
    return FLAGS.strategy == "dc_asgd" or FLAGS.correction == "gap_aware"


def _check_straggler(texts: list[str]) -> bool:
    for text in texts:
        try:
            testing.Straggler.parse(text)
        except ValueError as error:
            raise flags.ValidationError(str(error)) from None
    return True


def _check_fit(name: str) -> None:
    """Has `name` refused with strategies that it says nothing about."""

    def check(values: dict[str, Any]) -> bool:
        if FLAGS[name].using_default_value or values["strategy"] in FITS[name]:
            return True
        allowed = " or ".join(f"--strategy={one}" for one in FITS[name])
        raise flags.ValidationError(f"--{name} is for {allowed} only.")

    flags.register_multi_flags_validator(["strategy", name], check)


def _check_softsync(values: dict[str, Any]) -> bool:
    return (
        values["softsync_n"] is None or FLAGS["softsync_s"].using_default_value
    )


flags.register_validator("straggler", _check_straggler)
for _name in FITS:
    _check_fit(_name)
flags.register_multi_flags_validator(
    ["softsync_s", "softsync_n"],
    _check_softsync,
    message="give one of the two: --softsync_s says what --softsync_n does.",
)
flags.register_multi_flags_validator(
    ["backups", "strategy", "dana_variant", "correction"],
    lambda values: FLAGS["backups"].using_default_value or _has_backups(),
    message="--backups is for --strategy=dc_asgd, --dana_variant=dc and "
    "--correction=gap_aware only.",
)
flags.register_multi_flags_validator(
    ["joining", "warmup_worker_steps"],
    lambda values: (
        FLAGS["joining"].using_default_value or values["warmup_worker_steps"]
    ),
    message="--joining is for --warmup_worker_steps of at least 1 only.",
)
