"""Flags of the sub-commands that simulate.

The `define_*` functions add flags to those of a sub-command, and `check`
refuses what is wrong by its form.
"""

from collections.abc import Callable
from collections.abc import Sequence
import math
import pathlib
import sys

from absl import flags

from tfdist.cli import model_and_data
from tfdist.cli import usage
from tfdist.cli import virtual_cluster

OVERHEAD_MS = 2.0
"""The default of `--overhead_ms`, what `simulation.advise` assumes."""

_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    **{
        name: (lambda value: value >= 1, "at least 1")
        for name in (
            "batch_size",
            "epochs",
            "num_servers",
            "portions_per_worker",
        )
    },
    **{
        name: (lambda value: value >= 0, "at least 0")
        for name in (
            "seed",
            "latency_ms",
            "overhead_ms",
            "server_ms",
        )
    },
    **{
        name: (lambda value: value > 0, "above 0")
        for name in (
            "learning_rate",
            "evaluate_every",
            "bandwidth_gbps",
            "server_bandwidth_gbps",
        )
    },
    "momentum": (lambda value: 0 <= value < 1, "at least 0 and below 1"),
    "worker_timeout": (lambda value: value > 2, "above 2, two heartbeats"),
}
"""Name of a flag -> (whether a value is allowed, what is allowed)."""


def define_problem(values: flags.FlagValues) -> None:
    """Defines what is trained: `model_and_data.make` makes it."""
    define = usage.Definer(values, __name__)
    define.enum(
        "task",
        "digits",
        model_and_data.TASKS,
        "A model and its data that come with tfdist: digits (a convolutional "
        "network, 8 x 8 pixels), text (the next character), or teacher (what "
        "a random network says).",
    )
    define.string(
        "model",
        None,
        "Your own model instead of a task: FILE.py:FUNCTION or "
        "package.module:FUNCTION, a function without arguments that returns a "
        "compiled keras.Model, a new one at each call.",
    )
    define.string(
        "data",
        None,
        "Its data: FILE.py:FUNCTION or package.module:FUNCTION, a function "
        "without arguments that returns ((x, y), (x_validation, "
        "y_validation)), or (x, y), of which every tenth example is then held "
        "out for validation. A tf.data.Dataset of examples can be in place "
        "of each (x, y).",
    )
    define.integer(
        "batch_size",
        None,
        "Examples of one gradient. Default: what suits the task; 32 for your "
        "own model.",
    )
    define.float(
        "momentum",
        None,
        "Of SGD; of DANA where that is the method (there the default is "
        "DANA's 0.9). Default: 0; that of your own model.",
    )


def define_learning_rate(values: flags.FlagValues) -> None:
    """Defines the learning rate of sub-commands that train with one."""
    usage.Definer(values, __name__).float(
        "learning_rate",
        None,
        "Of the optimizer. Default: what suits one worker of the task; that "
        "of your own model.",
    )


def define_seed(values: flags.FlagValues) -> None:
    """Defines the seed of sub-commands that have one."""
    usage.Definer(values, __name__).integer(
        "seed",
        0,
        "Of the weights, the order of the examples and the compute times.",
    )


def define_training(values: flags.FlagValues) -> None:
    """Defines how long is trained, and what is seen of it."""
    define = usage.Definer(values, __name__)
    define.integer(
        "epochs", 5, "Passes over the data, of all workers together."
    )
    define.float("evaluate_every", 0.5, "Epochs between two evaluations.")
    define.enum(
        "work",
        "shares",
        ["shares", "queue"],
        "queue: workers take portions of an epoch when they are free, as with "
        'AsyncStrategy(work="queue").',
    )
    define.integer(
        "portions_per_worker", 8, "Portions of a worker, with --work=queue."
    )
    define_progress(values)


def define_progress(values: flags.FlagValues) -> None:
    """Defines whether a progress bar is shown: `show_progress` says so."""
    usage.Definer(values, __name__).bool(
        "progress",
        None,
        "Show a progress bar. Default: if standard error is a terminal.",
    )


def define_cluster(values: flags.FlagValues, measures: bool = False) -> None:
    """Defines the virtual cluster: `virtual_cluster.make` makes it.

    Args:
        values: of the sub-command.
        measures: whether the sub-command measures tasks, too, and not only
            the user's own model.
    """

    def default(of_a_task: str, measured: str) -> str:
        if measures:
            return f"Default: {measured}."
        return f"Default: {of_a_task}; with --model, {measured}."

    define = usage.Definer(values, __name__)
    define.integer("num_servers", 1, "Parameter servers.")
    define.string(
        "compute",
        "gamma:0.1:100",
        "Time that a gradient takes: DISTRIBUTION:SECONDS[:SHAPE] with "
        "constant, gamma, lognormal or pareto, and the mean in seconds. "
        + default("gamma:0.1:100", "measured on this machine"),
    )
    define.string(
        "trace",
        None,
        "Instead of --compute: a directory with the records of a "
        "ClusterMonitor, whose compute times are used again.",
    )
    define.multi_string(
        "straggler",
        [],
        "WORKER:SECONDS[:DISTRIBUTION]: each step of this worker takes "
        "SECONDS longer on average; constant unless given, lognormal, pareto "
        "or gamma. May be repeated.",
    )
    define.multi_string(
        "slow",
        [],
        "WORKER:FACTOR: this worker takes FACTOR times as long. May be "
        "repeated.",
    )
    define.string(
        "tail",
        None,
        "PROBABILITY:SECONDS: with this probability a step, of any worker, "
        "takes SECONDS longer.",
    )
    define.multi_string(
        "failure",
        [],
        "WORKER:AT[:UNTIL]: this worker dies AT seconds after the start and "
        "returns at UNTIL; without UNTIL it never does. May be repeated.",
    )
    define.float(
        "worker_timeout",
        10.0,
        "Seconds after which the others stop waiting for a silent worker.",
    )
    define.float("latency_ms", 0.0, "Milliseconds that a message travels.")
    define.float(
        "bandwidth_gbps",
        None,
        "Gbit/s of each worker's link, per direction. Default: no limit.",
    )
    define.float(
        "server_bandwidth_gbps",
        None,
        "Gbit/s of each server's link, per direction. Default: "
        "--bandwidth_gbps.",
    )
    define.float(
        "server_ms",
        0.0,
        "Milliseconds that an update occupies a server. "
        + default("0", "measured on this machine"),
    )
    define.float(
        "overhead_ms",
        None,
        "Worker-side overhead per exchange, in milliseconds; "
        "benchmarks/step_overhead.py in tfdist's repository measures it. "
        + default("0", f"{OVERHEAD_MS:g}"),
    )


def define_method_modules(values: flags.FlagValues) -> None:
    """Defines where methods come from that are not tfdist's."""
    flags.DEFINE_multi_string(
        "method_module",
        [],
        "FILE.py or package.module that calls tfdist.register, for methods of "
        "your own. May be repeated.",
        flag_values=values,
        module_name=__name__,
    )


def listing(
    values: flags.FlagValues, module_name: str, hidden: Sequence[str] = ()
) -> str:
    """Returns the help of a sub-command's own flags, then of those here.

    Args:
        values: the sub-command's flags.
        module_name: of the sub-command.
        hidden: names of flags to leave out.
    """
    own, shared = (
        usage.listing(values, name, hidden) for name in (module_name, __name__)
    )
    return (
        f"Flags:\n{own}\n\nFlags of the model, the data and the cluster:\n"
        f"{shared}"
    )


def check(values: flags.FlagValues) -> None:
    """Refuses what can be seen to be wrong without TensorFlow.

    Args:
        values: parsed flags; of the groups above those that are defined.

    Raises:
        UsageError: with the flag, what came and what is allowed.
    """
    for name, (is_good, allowed) in _RANGES.items():
        value = values[name].value if name in values else None
        if value is not None:
            good = math.isfinite(value) and is_good(value)
            usage.check(good, name, f"be {allowed}", value)
    if "model" in values:
        model_and_data.check(values)
    if "compute" in values:
        virtual_cluster.check(values)
    if "server_ms" in values and values["server_ms"].present:
        # `advise` always measures, the others a user's own model.
        measures = "step_seconds" in values or values.model is not None
        usage.check(
            values.server_ms > 0 or not measures,
            "server_ms",
            "be above 0 where it is measured otherwise (0.001, say)",
            values.server_ms,
        )


def overhead_seconds(values: flags.FlagValues) -> float:
    """Returns a worker's time per exchange beside network and update."""
    given = values.overhead_ms
    return (OVERHEAD_MS if given is None else given) / 1e3


def define_output(values: flags.FlagValues, default: str, what: str) -> None:
    """Defines where the results go."""
    usage.Definer(values, __name__).string(
        "output_dir", default, f"A directory for the results: {what}."
    )


def make_output_dir(values: flags.FlagValues) -> pathlib.Path:
    """Returns the directory for the results, which then exists."""
    return usage.make_directory("output_dir", values.output_dir)


def show_progress(values: flags.FlagValues) -> bool:
    """Whether to show a progress bar."""
    return sys.stderr.isatty() if values.progress is None else values.progress
